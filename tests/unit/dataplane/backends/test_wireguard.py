"""wireguard: options, what a lease publishes, which endpoint is used, and the objects of node and peers."""

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import FAMILIES, IPV4, IPV6, Family
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData, WireguardData
from flannelette.services.core.secret import Secret
from flannelette.services.dataplane.backends import make_backend
from flannelette.services.dataplane.backends.backend import NodeFiles, NodeIdentity, NodeLinks
from flannelette.services.dataplane.backends.wireguard import Wireguard, WireguardLink
from flannelette.services.dataplane.links.changes import LinkState, as_created, as_device, is_renamed, link_changes
from flannelette.services.dataplane.links.desired import Device, LinkSpec
from flannelette.services.dataplane.links.reconcile import is_leftover
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.peers.peer import PeerContext, peer_of
from tests.examples.dataplane import DUAL_UNDERLAY, UNDERLAY, lease
from tests.examples.leases import network

KEY = "QAk/Qd4NbWqQz0DdTSXwY0mbzOeZhyy5K4TtCKkvZDM="
OTHER = "zBk/Qd4NbWqQz0DdTSXwY0mbzOeZhyy5K4TtCKkvZDM="
PUBLIC = bytes(range(32))
NETWORK = '{"Network":"10.5.0.0/16","EnableIPv6":%s,"IPv6Network":"fd00:10:5::/48","Backend":{"Type":"wireguard"%s}}'
NETWORKS = (ip_network("10.5.0.0/16"), ip_network("fd00:10:5::/48"))
WG, WG_V6 = Device("flannel-wg", 7, "", 1420, ""), Device("flannel-wg-v6", 8, "", 1420, "")
NAMES = {2: "eth0", 7: "flannel-wg", 8: "flannel-wg-v6"}
SEPARATE = NodeLinks(DUAL_UNDERLAY, {IPV4: WG, IPV6: WG_V6}, 77, networks=NETWORKS)
SINGLE = replace(SEPARATE, devices={IPV4: WG, IPV6: WG})
NODE = Wireguard(private_key=Secret(bytes(range(32, 64))), public_key=PUBLIC)


def part(cidr: str, public: str, port: int = 51820, key: str = KEY) -> Subnet:
    return Subnet(ip_network(cidr), ip_address(public) if public else None, WireguardData(key, port))


FOUR, SIX = part("10.5.53.0/24", "10.99.0.12"), part("fd00:10:5:35::/64", "fd00:99::12", 51821)


def options(text: str = "", *, dual: bool = False) -> Wireguard:
    found = make_backend(network(NETWORK % ("true" if dual else "false", text and f",{text}")))
    assert isinstance(found, Wireguard)
    return found


def words(objects: Iterable[KernelObject]) -> list[str]:
    return [text(item, NAMES) for item in sorted(objects)]


def device(family: Family = IPV4, backend: Wireguard = NODE, mtu: int = 1500, own: Lease | None = None) -> LinkSpec:
    found = backend.link(family, replace(DUAL_UNDERLAY, mtu=mtu), NodeIdentity("n1", own))
    assert found is not None
    return found


def test_a_peer_is_its_key_with_its_subnet_and_a_route() -> None:
    assert words(NODE.peer_objects([FOUR], (), SEPARATE)) == [
        f"flannel-wg peer {KEY} endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24",
        "10.5.53.0/24 dev flannel-wg proto 77 scope link metric 1334",
    ]


def test_of_both_families_each_device_has_the_peer_with_its_own_subnet() -> None:
    backend = replace(NODE, psk=Secret(PUBLIC), keepalive=25)
    assert words(backend.peer_objects([FOUR, SIX], (), SEPARATE)) == [
        f"flannel-wg peer {KEY} preshared-key (hidden) endpoint 10.99.0.12:51820 persistent-keepalive 25 "
        "allowed-ips 10.5.53.0/24",
        f"flannel-wg-v6 peer {KEY} preshared-key (hidden) endpoint [fd00:99::12]:51821 persistent-keepalive 25 "
        "allowed-ips fd00:10:5:35::/64",
        "10.5.53.0/24 dev flannel-wg proto 77 scope link metric 1334",
        "fd00:10:5:35::/64 dev flannel-wg-v6 proto 77 metric 54",
    ]


@pytest.mark.parametrize(
    ("mode", "four", "six", "own", "endpoint"),
    [
        ("ipv4", "10.99.0.12", "fd00:99::12", DUAL_UNDERLAY, "10.99.0.12:51820"),
        ("ipv6", "10.99.0.12", "fd00:99::12", DUAL_UNDERLAY, "[fd00:99::12]:51820"),
        ("auto", "10.99.0.12", "fd00:99::12", DUAL_UNDERLAY, "10.99.0.12:51820"),
        ("auto", "198.51.100.12", "2001:db8::12", DUAL_UNDERLAY, "198.51.100.12:51820"),
        ("auto", "10.99.0.12", "2001:db8::12", DUAL_UNDERLAY, "10.99.0.12:51820"),
        ("auto", "10.99.0.12", "2001:db8::12", "2001:db8::11", "[2001:db8::12]:51820"),
    ],
)
def test_one_device_for_both_families_has_one_peer_with_both_subnets(
    mode: str, four: str, six: str, own: object, endpoint: str
) -> None:
    public = (ip_address("10.99.0.11"), ip_address(own)) if isinstance(own, str) else DUAL_UNDERLAY.addresses
    links = replace(SINGLE, underlay=replace(DUAL_UNDERLAY, public_addresses=public))
    subnets = [part("10.5.53.0/24", four), part("fd00:10:5:35::/64", six)]
    assert words(replace(NODE, mode=mode).peer_objects(subnets, (), links))[0] == (
        f"flannel-wg peer {KEY} endpoint {endpoint} allowed-ips 10.5.53.0/24,fd00:10:5:35::/64"
    )


def test_the_port_is_the_leases_or_that_of_the_configuration() -> None:
    backend = replace(NODE, port=1000, port_v6=1001)
    for subnet, port in (
        (part("10.5.53.0/24", "10.99.0.12", 0), 1000),
        (part("10.5.53.0/24", "10.99.0.12", 7), 7),
        (part("fd00:10:5:35::/64", "fd00:99::12", 0), 1001),
    ):
        assert f":{port} " in words(backend.peer_objects([subnet], (), SEPARATE))[0]
    flannels = part("fd00:10:5:35::/64", "fd00:99::12", 1001)
    assert ":1000 " in words(replace(backend, mode="ipv6").peer_objects([flannels], (), SINGLE))[0], (
        "flanneld's single device listens on ListenPort, whatever its lease says"
    )


def test_a_lease_publishes_the_port_that_is_listened_on() -> None:
    assert [NODE.lease_data(IPV4, WG), NODE.lease_data(IPV6, WG_V6), NODE.lease_data(IPV4, None)] == [
        WireguardData("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", 51820),
        WireguardData("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=", 51821),
        None,
    ]
    for mode in ("auto", "ipv4", "ipv6"):
        data = replace(NODE, mode=mode).lease_data(IPV6, SINGLE.devices[IPV6])
        assert isinstance(data, WireguardData)
        assert data.port == 51820, mode


def test_the_node_needs_its_keys_and_a_route_to_the_network_in_flannels_place() -> None:
    key = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    assert words(NODE.node_objects((), SEPARATE)) == [
        f"flannel-wg listen-port 51820 private-key (hidden) public-key {key}",
        f"flannel-wg-v6 listen-port 51821 private-key (hidden) public-key {key}",
        "10.5.0.0/16 dev flannel-wg proto 77 scope link",
        "fd00:10:5::/48 dev flannel-wg-v6 proto 77 metric 1024",
    ]
    assert words(replace(NODE, mode="auto").node_objects((), SINGLE)) == [
        f"flannel-wg listen-port 51820 private-key (hidden) public-key {key}",
        "10.5.0.0/16 dev flannel-wg proto 77 scope link",
        "fd00:10:5::/48 dev flannel-wg proto 77 metric 1024",
    ]


@pytest.mark.parametrize(
    ("subnet", "mode", "reason"),
    [
        (Subnet(ip_network("10.5.53.0/24"), ip_address("10.99.0.12")), "separate", "the lease has no public key"),
        (
            Subnet(ip_network("10.5.53.0/24"), None, VxlanData(1, "06:0c:56:6d:fb:b3")),
            "separate",
            "the lease has no public key",
        ),
        (part("10.5.53.0/24", "10.99.0.12", key="nonsense"), "separate", "invalid public key 'nonsense'"),
        (part("10.5.53.0/24", "10.99.0.12", key="A" * 43 + "="), "separate", f"invalid public key '{'A' * 43}='"),
        (part("10.5.53.0/24", ""), "separate", "the lease has no public IPv4 address"),
        (part("10.5.53.0/24", ""), "ipv4", "the lease has no public IPv4 address"),
        (part("10.5.53.0/24", ""), "ipv6", ""),
        (
            part("10.5.53.0/24", "10.99.0.12", key="AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="),
            "separate",
            "public key AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8= is this node's own",
        ),
    ],
)
def test_a_lease_that_cannot_be_carried_says_why(subnet: Subnet, mode: str, reason: str) -> None:
    assert replace(NODE, mode=mode).rejection(subnet, SEPARATE) == reason


def test_nodes_behind_one_nat_may_have_one_address() -> None:
    context = PeerContext(network(NETWORK % ("false", "")), NODE, SEPARATE)
    behind = part("10.5.53.0/24", "10.99.0.11", 51830)
    peer = peer_of(lease(behind, kind="wireguard"), context)
    assert peer.reason == ""
    assert words(peer.objects)[0].startswith(f"flannel-wg peer {KEY} endpoint 10.99.0.11:51830 ")


def test_the_devices_are_flannels() -> None:
    own = Lease("10.5.27.0-24", "n1", (part("10.5.27.0/24", "10.99.0.11"), part("fd00:10:5:1b::/64", "fd00:99::11")))
    for family, name, address in zip(
        FAMILIES, ("flannel-wg", "flannel-wg-v6"), ("10.5.27.0/32", "fd00:10:5:1b::/128"), strict=True
    ):
        spec = device(family, own=own)
        created = as_created(spec)
        assert [change.command for change in (*link_changes(None, spec), *link_changes(created, spec))] == [
            f"ip link add {name} mtu 1420 type wireguard",
            f"ip addr add {address} dev {name}",
            f"ip link set {name} up",
        ]
        assert as_device(created, spec).description == f"{name}: wireguard mtu 1420 down"
        assert device(family, replace(NODE, mode="auto")).name == "flannel-wg"


def test_a_device_is_never_deleted_and_made_again() -> None:
    found = replace(as_created(device()), index=7, up=True, mtu=1500, data={"anything": 1})
    assert [change.command for change in link_changes(found, device())] == ["ip link set flannel-wg mtu 1420"]


def test_a_device_that_was_renamed_is_known_by_its_index_and_another_ones_tunnel_is_not_ours() -> None:
    users = LinkState("wg0", 9, "wireguard", "", 1420, up=True)
    assert is_renamed(users, device(), {9})
    assert not is_renamed(users, device(), ())
    assert not is_leftover(users, WireguardLink, has_our_routes=True, former=[])
    assert is_leftover(replace(users, name="flannel-wg"), WireguardLink, has_our_routes=True, former=[])


def test_a_network_with_a_name_has_devices_of_its_own(tmp_path: Path) -> None:
    backend = options(dual=True).on_node(NodeFiles(tmp_path / "wgkey-blue", suffix="-blue"))
    four, six = (device(family, backend).name for family in FAMILIES)
    assert (four, six) == ("fl-wg-blue", "fl-wg6-blue")
    devices = {IPV4: replace(WG, name=four), IPV6: replace(WG_V6, name=six)}
    published = [backend.lease_data(family, devices[family]) for family in FAMILIES]
    assert [each.port for each in published if isinstance(each, WireguardData)] == [51820, 51821]
    assert device(IPV6, replace(backend, mode="auto")).name == four
    for name in (four, six):
        left = LinkState(name, 9, "wireguard", "", 1420, up=True)
        assert is_leftover(left, WireguardLink, has_our_routes=True, former=[])
        assert not is_leftover(left, WireguardLink, has_our_routes=False, former=[])


def test_options_are_flannels() -> None:
    psk = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    found = options(
        f'"PSK":"{psk}","ListenPort":1,"listenportv6":2,"Mode":"auto","MTU":1400,"PersistentKeepaliveInterval":25'
    )
    assert found == Wireguard(Secret(PUBLIC), 1, 2, "auto", 1400, 25)
    assert psk not in repr(found)
    assert options() == Wireguard()
    assert (options().mtu(UNDERLAY), found.mtu(UNDERLAY), found.mtu(replace(UNDERLAY, mtu=1300))) == (
        1420,
        1320,
        1220,
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('"Mode":"Auto"', "Mode 'Auto' of Backend .* does not exist: write separate, auto, ipv4 or ipv6"),
        ('"PSK":"c2hvcnQ="', "PSK of Backend .* must be 32 bytes in base64, as `wg genpsk` prints them"),
        ('"PSK":"no base64!"', "PSK of Backend .* must be 32 bytes in base64"),
        ('"PSK":7', "PSK in Backend .* must be a string"),
        ('"PSK":["c2hvcnQ="]', "PSK in Backend .* must be a string"),
        ('"ListenPort":65536', "ListenPort in Backend .* must be a whole number from 0 to 65535, not 65536"),
        ('"ListenPort":0', "ListenPort of Backend .* must be 1 to 65535"),
        ('"ListenPortV6":"x"', "ListenPortV6 in Backend .* must be a whole number"),
        ('"PersistentKeepaliveInterval":"25s"', "PersistentKeepaliveInterval in Backend .* must be a whole number"),
        (
            '"MTU":1300',
            "MTU 1300 of Backend .* leaves 1220 bytes for packets, and IPv6 needs 1280: write at least 1360",
        ),
        ('"ListenPort":51821', "ListenPort and ListenPortV6 of Backend .* are both 51821"),
    ],
)
def test_a_wrong_option_is_named_with_what_is_allowed(text: str, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        options(text, dual=True)
    assert "c2hvcnQ" not in str(refused.value)


def test_a_mode_of_a_family_that_the_network_lacks_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"Mode ipv6 .* the network has IPv4 only: write Mode separate"):
        options('"Mode":"ipv6"')
    assert options('"Mode":"ipv4"').mode == "ipv4"


def test_an_underlay_that_leaves_too_little_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"eth0 has MTU 1300, of which WireGuard leaves 1220 bytes"):
        device(IPV6, mtu=1300)


def test_an_mtu_above_the_underlays_is_told() -> None:
    (warning,) = replace(NODE, parent_mtu=9000).warnings(UNDERLAY)
    assert warning.startswith("the backend's option MTU is 9000, but eth0 has 1500, which counts")


def test_the_key_of_the_node_comes_from_its_file(tmp_path: Path) -> None:
    files = NodeFiles(tmp_path / "wgkey")
    first, again = options().on_node(files), options().on_node(files)
    assert (first, len(first.public_key)) == (again, 32)
    assert repr(bytes(first.private_key))[2:-1] not in repr(first)


def test_options_of_another_type_say_where_they_stand() -> None:
    with pytest.raises(InvalidInput, match=r"^Mode in Backend must be a string"):
        Wireguard.parse(GoObject.parse('{"Mode": 1}', "Backend"))
