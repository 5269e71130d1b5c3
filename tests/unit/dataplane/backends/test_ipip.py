"""ipip and alloc: what they make of leases, and how the ipip device comes into line."""

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import ip_interface, ip_network

import pytest

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.family import IPV4
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.backends import make_backend
from flannelette.services.dataplane.backends.alloc import Alloc
from flannelette.services.dataplane.backends.backend import NodeIdentity, NodeLinks
from flannelette.services.dataplane.backends.ipip import Ipip, IpipLink
from flannelette.services.dataplane.links.changes import (
    LinkState,
    as_created,
    as_device,
    is_renamed,
    is_rival,
    link_changes,
)
from flannelette.services.dataplane.links.desired import Device, LinkSpec
from flannelette.services.dataplane.links.reconcile import is_leftover
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.peers.peer import PeerContext, peer_of
from flannelette.services.dataplane.probes.path import Layer, paths_of
from flannelette.services.dataplane.underlay import connected_routes
from tests.examples.dataplane import ETH0, FLANNEL, NAMES, UNDERLAY, lease, route, subnet
from tests.examples.leases import network

NETWORK = '{"Network": "10.5.0.0/16", "Backend": {"Type": "%s"}}'
LINKS = NodeLinks(UNDERLAY, {IPV4: Device("flannel.ipip", FLANNEL, "", 1480, "")}, 77)
PEER = subnet("10.5.53.0/24", "10.99.0.12")
OWN = Lease("10.5.27.0-24", "n1", (subnet("10.5.27.0/24", "10.99.0.11"),), "ipip")


def device(own: Lease | None = OWN, mtu: int = 1500) -> LinkSpec:
    found = Ipip().link(IPV4, replace(UNDERLAY, mtu=mtu), NodeIdentity("n1", own))
    assert found is not None
    return replace(found, network=ip_network("10.5.0.0/16"))


KEPT = replace(as_created(device()), index=3, up=True, addresses=(ip_interface("10.5.27.0/32"),))
"""In order."""


def commands(link: LinkState | None, wanted: LinkSpec | None = None) -> list[str]:
    return [change.command for change in link_changes(link, wanted or device())]


def words(objects: Iterable[KernelObject]) -> list[str]:
    return sorted(text(item, {**NAMES, FLANNEL: "flannel.ipip"}) for item in objects)


def test_a_peer_is_one_route_through_its_public_address() -> None:
    expected = ["10.5.53.0/24 via 10.99.0.12 dev flannel.ipip proto 77 metric 1334 onlink"]
    assert words(Ipip().peer_objects([PEER], (), LINKS)) == expected
    assert Ipip().rejection(subnet("10.5.53.0/24"), LINKS) == "the lease has no public IPv4 address"


def test_with_direct_routing_a_connected_peer_is_a_route_of_the_same_key_through_the_underlay() -> None:
    near = replace(LINKS, on_link=connected_routes([route("10.99.0.0/16 dev eth0")], ETH0))
    backend = Ipip.parse(GoObject.parse('{"directrouting": true}', "Backend"))
    (direct,) = backend.peer_objects([PEER], (), near)
    assert words([direct]) == ["10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1334 onlink"]
    (tunnelled,) = backend.peer_objects([PEER], (), LINKS)
    assert direct.key == tunnelled.key
    assert "dev flannel.ipip" in words(Ipip().peer_objects([PEER], (), near))[0]
    assert (backend.follows_routes, Ipip().follows_routes) == (True, False)


def test_the_device_is_flannels() -> None:
    assert commands(None) == [
        "ip link add flannel.ipip mtu 1480 type ipip local 10.99.0.11 ttl inherit nopmtudisc",
    ]
    assert commands(as_created(device())) == [
        "ip addr add 10.5.27.0/32 dev flannel.ipip",
        "ip link set flannel.ipip up",
    ]
    assert commands(KEPT) == []
    assert as_device(KEPT, device()).description == (
        "flannel.ipip: ipip local 10.99.0.11 ttl inherit nopmtudisc mtu 1480 up"
    )


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        ({"local": "10.99.0.99"}, ["ip link set flannel.ipip type ipip local 10.99.0.11 ttl inherit nopmtudisc"]),
        ({"pmtudisc": 1}, ["ip link set flannel.ipip type ipip local 10.99.0.11 ttl inherit nopmtudisc"]),
        ({"ttl": 64}, ["ip link set flannel.ipip type ipip local 10.99.0.11 ttl inherit nopmtudisc"]),
        (
            {"remote": "10.99.0.12"},
            [
                "ip link del flannel.ipip",
                "ip link add flannel.ipip mtu 1480 type ipip local 10.99.0.11 ttl inherit nopmtudisc",
            ],
        ),
    ],
)
def test_attributes_change_in_place_so_that_no_route_is_lost(
    difference: dict[str, object], expected: list[str]
) -> None:
    assert commands(replace(KEPT, data={**KEPT.data, **difference})) == expected


def test_a_device_of_another_kind_is_replaced_and_one_of_another_mtu_is_not() -> None:
    assert commands(replace(KEPT, kind="dummy", data={}))[0] == "ip link del flannel.ipip"
    assert commands(replace(KEPT, mtu=1500)) == ["ip link set flannel.ipip mtu 1480"]


def test_the_codec_reads_what_it_writes_and_what_the_kernel_leaves_out() -> None:
    for link in (IpipLink("10.99.0.11"), IpipLink("10.99.0.11", "10.99.0.12", 64, True, 1)):
        assert IpipLink.decode(link.encode()) == link
    assert IpipLink.decode({"local": "10.99.0.11", "remote": None}) == IpipLink("10.99.0.11")


def test_tunl0_is_never_touched() -> None:
    tunl0 = LinkState("tunl0", 2, "ipip", "", 1480, up=False, data={"local": None, "remote": None})
    assert not is_rival(tunl0, device())
    assert not is_renamed(tunl0, device(), {2}), "it has another local address"
    assert not is_leftover(tunl0, IpipLink, has_our_routes=True, former=[])
    assert not is_leftover(replace(tunl0, name="flannel.ipip"), IpipLink, has_our_routes=True, former=[])


def test_a_device_that_an_earlier_configuration_left_is_known() -> None:
    assert is_leftover(KEPT, IpipLink, has_our_routes=True, former=[])
    assert is_leftover(KEPT, IpipLink, has_our_routes=False, former=[ip_network("10.5.27.0/24")])
    assert not is_leftover(KEPT, IpipLink, has_our_routes=False, former=[])


def test_another_tunnel_of_the_same_address_is_a_rival_and_ours_if_its_index_is_known() -> None:
    another = replace(KEPT, name="tun9", index=9)
    assert is_rival(another, device())
    assert not is_renamed(another, device(), ())
    assert is_renamed(another, device(), {9})


def test_an_underlay_that_leaves_too_little_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"eth0 has MTU 80, of which IPIP leaves 60 bytes for packets"):
        device(mtu=80)


def test_options_are_checked() -> None:
    with pytest.raises(InvalidInput, match=r"^DirectRouting in Backend must be true or false"):
        Ipip.parse(GoObject.parse('{"DirectRouting": 1}', "Backend"))


@pytest.mark.parametrize(("kind", "backend", "mtu"), [("ipip", Ipip(), 1480), ("alloc", Alloc(), 1500)])
def test_a_configuration_chooses_them(kind: str, backend: Ipip | Alloc, mtu: int) -> None:
    found = make_backend(network(NETWORK % kind))
    assert found == backend
    assert found.mtu(UNDERLAY) == mtu
    assert found.lease_data(IPV4, None) is None


def test_a_peer_of_alloc_needs_nothing_and_is_carried() -> None:
    situation = PeerContext(network(NETWORK % "alloc"), Alloc(), NodeLinks(UNDERLAY, {}, 77))
    peer = peer_of(lease(PEER, kind=""), situation)
    assert (peer.objects, peer.reason, peer.ignored) == ((), "", "")
    assert [(path.layer, str(path.address), path.must_answer) for path in paths_of(peer, situation)] == [
        (Layer.OVERLAY, str(PEER.cidr[1]), False),  # the bridge of its pods
        (Layer.UNDERLAY, str(PEER.public_address), True),
    ]
    foreign = peer_of(lease(PEER, kind="vxlan"), situation)
    assert [*paths_of(foreign, situation)] == []
    assert foreign.ignored == "the backend type is vxlan, that of the network is none"
    assert Alloc().link(IPV4, UNDERLAY, NodeIdentity("n1", OWN)) is None
