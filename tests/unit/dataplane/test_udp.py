"""udp: what the backend makes of leases, in the kernel and in user space, and what its proxy does to packets."""

import struct
from dataclasses import replace
from ipaddress import ip_interface, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.backends.backend import NodeFiles, NodeIdentity, NodeLinks
from flannelette.services.dataplane.backends.ipip import Ipip
from flannelette.services.dataplane.backends.udp import FouLink, TunLink, Udp
from flannelette.services.dataplane.links.interfaces import (
    Device,
    LinkSpec,
    LinkState,
    as_created,
    deletions,
    link_changes,
)
from flannelette.services.dataplane.links.reconcile import is_leftover
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.udp.packets import NET_UNREACHABLE, decrement_ttl, icmp_error
from tests.examples.dataplane import FLANNEL, NAMES, UNDERLAY, subnet
from tests.examples.leases import network

LINKS = NodeLinks(UNDERLAY, {IPV4: Device("flannel0", FLANNEL, "", 1472, "")}, 77)
OWN = Lease("10.5.27.0-24", "n1", (subnet("10.5.27.0/24", "10.99.0.11"),))
PEER = subnet("10.5.53.0/24", "10.99.0.12")
SHOWN = {**NAMES, FLANNEL: "flannel0"}
NETWORK = '{"Network": "10.5.0.0/16", "Backend": {"Type": "udp"}}'


def device(mtu: int = 1500) -> LinkSpec:
    found = Udp().link(IPV4, replace(UNDERLAY, mtu=mtu), NodeIdentity("n1", OWN))
    assert found is not None
    return found


def checksum(data: bytes | bytearray) -> int:
    """RFC 1071; 0 over a header that is right."""
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def packet(ttl: int = 64, protocol: int = 17, flags: int = 0, payload: bytes = b"12345678rest") -> bytearray:
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + len(payload), 1, flags, ttl, protocol, 0, b"src.", b"dst.")
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return bytearray(header + payload)


def test_a_peer_is_a_route_through_its_public_address_and_the_network_is_one_too() -> None:
    (peer,) = Udp().peer_objects([PEER], (), LINKS)
    assert text(peer, SHOWN) == "10.5.53.0/24 via 10.99.0.12 dev flannel0 proto 77 metric 1334 onlink"
    (whole,) = Udp().node_objects((), replace(LINKS, networks=(ip_network("10.5.0.0/16"),)))
    assert text(whole, SHOWN) == "10.5.0.0/16 dev flannel0 proto 77 scope link metric 2566"
    covering = replace(LINKS, networks=(ip_network("10.0.0.0/8"),))
    assert not Udp().node_objects((), covering), "it would swallow the underlay"


def test_the_device_is_made_by_an_ioctl() -> None:
    assert [change.command for change in link_changes(None, device())] == ["ip tuntap add flannel0 mode tun"]
    made = LinkState("flannel0", 3, "tun", "", 1500, up=False)
    assert [change.command for change in link_changes(made, device())] == [
        "ip link set flannel0 mtu 1472",
        "ip addr add 10.5.27.0/32 dev flannel0",
        "ip link set flannel0 up",
    ]
    with pytest.raises(InvalidInput, match="eth0 has MTU 90, of which UDP leaves 62 bytes"):
        device(90)


FOU = replace(Udp(), is_in_kernel=True, reason="the kernel has FOU")


def tunnel(kind: str = "", port: int = 8285) -> LinkSpec:
    underlay = replace(UNDERLAY, kind=kind)
    found = replace(FOU, port=port).link(IPV4, underlay, NodeIdentity("n1", OWN))
    assert found is not None
    return replace(found, network=ip_network("10.5.0.0/16"))


def kept(spec: LinkSpec) -> LinkState:
    return replace(as_created(spec), index=3, up=True, addresses=(ip_interface("10.5.27.0/32"),))


WORDS = "local 10.99.0.11 ttl inherit nopmtudisc encap fou encap-sport 8285 encap-dport 8285"


def test_in_the_kernel_there_is_a_tunnel_with_a_fou_port_and_no_process() -> None:
    add, *_ = link_changes(None, tunnel())
    assert add.command == f"ip link add flannel.fou mtu 1472 type ipip {WORDS}"
    assert {name: value for name, value in add.arguments.items() if "encap" in name or "proto" in name} == {
        "ipip_proto": 4,
        "ipip_encap_type": 1,
        "ipip_encap_flags": 0,
        "ipip_encap_sport": 8285,
        "ipip_encap_dport": 8285,
    }
    assert link_changes(kept(tunnel()), tunnel()) == ()
    assert FouLink.decode(tunnel().attributes.encode()) == tunnel().attributes
    (port,) = FOU.node_objects((), replace(LINKS, networks=(ip_network("10.5.0.0/16"),)))
    assert text(port, SHOWN) == "port 8285 ipproto 4 local 10.99.0.11"
    (peer,) = FOU.peer_objects([PEER], (), LINKS)
    assert peer in Udp().peer_objects([PEER], (), LINKS), "the routes differ by their device alone"
    assert FOU.way == "in the kernel: the kernel has FOU"
    assert replace(FOU, is_in_kernel=False, reason="no").way == "in user space: no"


@pytest.mark.parametrize(("kind", "wanted"), [("veth", False), ("bridge", False), ("", None), ("bond", None)])
def test_checksums_are_computed_where_no_network_card_does_it(kind: str, wanted: bool | None) -> None:
    assert tunnel(kind).checksum_offload is wanted


def test_the_fou_port_of_a_device_goes_when_the_device_goes_or_sends_from_another() -> None:
    gone = "ip fou del port 8285 local 10.99.0.11"
    assert [change.command for change in deletions(kept(tunnel()))] == ["ip link del flannel.fou", gone]
    words = WORDS.replace("8285", "9000")
    assert [change.command for change in link_changes(kept(tunnel()), tunnel(port=9000))] == [
        f"ip link set flannel.fou type ipip {words}",
        gone,
    ]
    ipip = Ipip().link(IPV4, UNDERLAY, NodeIdentity("n1", OWN))
    assert ipip is not None
    assert [change.command for change in link_changes(kept(tunnel()), ipip)] == [
        "ip link set flannel.fou down",
        gone,
        "ip link set flannel.fou name flannel.ipip",
    ]
    assert len(deletions(replace(kept(tunnel()), name="another"))) == 1, "the port of another's device stays"


def test_a_flannelds_own_tun_is_never_ours() -> None:
    found = LinkState("flannel0", 3, "tun", "", 1472, up=True, data={"persist": 0})
    assert not is_leftover(found, TunLink, has_our_routes=True, former=[])
    assert is_leftover(replace(found, data={"persist": 1}), TunLink, has_our_routes=True, former=[])
    assert is_leftover(kept(tunnel()), FouLink, has_our_routes=True, former=[])


def test_a_network_with_a_name_has_a_tun_of_its_own_and_the_kernels_tunnel_is_there_once() -> None:
    blue = Udp().on_node(NodeFiles(suffix="-blue"))
    names = [each.link(IPV4, UNDERLAY, NodeIdentity("n1")) for each in (blue, replace(blue, is_in_kernel=True))]
    assert [each and each.name for each in names] == ["fl-udp-blue", "flannel.fou"]
    found = LinkState("fl-udp-blue", 3, "tun", "", 1472, up=True, data={"persist": 1})
    assert is_leftover(found, TunLink, has_our_routes=True, former=[])


def test_the_options_are_flannels_port_and_our_mode() -> None:
    assert Udp.parse(GoObject.parse('{"mode":"user"}', "Backend")).mode == "user"
    with pytest.raises(InvalidInput, match=r"^Mode 'fast' of Backend in .*: write auto, kernel or user"):
        Udp.parse(GoObject.parse('{"Mode":"fast"}', "Backend"))


async def test_mode_user_asks_the_kernel_nothing() -> None:
    assert (await Udp(mode="user").prepare(network(NETWORK), None)).way == "in user space: the option Mode says so"


def test_the_port_is_flannels() -> None:
    assert Udp.parse(GoObject.parse("{}", "Backend")).port == 8285
    assert Udp.parse(GoObject.parse('{"Port":9000}', "Backend")).port == 9000
    with pytest.raises(InvalidInput, match=r"^Port in Backend must be a whole number from 0 to 65535"):
        Udp.parse(GoObject.parse('{"Port":65536}', "Backend"))
    assert Udp().lease_type == ""
    assert Udp().lease_data(IPV4, None) is None


@given(st.integers(2, 255), st.integers(0, 255), st.integers(0, 0xFFFF))
def test_one_hop_is_taken_off_and_the_checksum_is_right(ttl: int, protocol: int, flags: int) -> None:
    before = packet(ttl, protocol, flags)
    after = bytearray(before)
    assert decrement_ttl(after)
    assert (after[8], checksum(after[:20])) == (ttl - 1, 0)
    assert (after[:8], after[9:10], after[12:]) == (before[:8], before[9:10], before[12:])


@pytest.mark.parametrize("ttl", [0, 1])
def test_a_packet_without_a_hop_left_is_dropped(ttl: int) -> None:
    assert not decrement_ttl(packet(ttl))


def test_net_unreachable_is_as_flannel_answers() -> None:
    asked = bytes(packet())
    answer = icmp_error(asked, b"own.", NET_UNREACHABLE)
    assert answer is not None
    assert (len(answer), answer[8], answer[9], answer[12:16], answer[16:20]) == (56, 8, 1, b"own.", b"src.")
    assert (answer[20:22], answer[28:]) == (b"\x03\x00", asked[:28])
    assert (checksum(answer[:20]), checksum(answer[20:])) == (0, 0)


@pytest.mark.parametrize("asked", [packet(protocol=1), packet(flags=1), packet(flags=0x2100)])
def test_nothing_is_answered_to_icmp_or_to_a_later_fragment(asked: bytearray) -> None:
    assert icmp_error(bytes(asked), b"own.", NET_UNREACHABLE) is None
