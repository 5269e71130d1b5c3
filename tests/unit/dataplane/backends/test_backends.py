"""vxlan and host-gw: the objects are flanneld's but for protocol and metric; options, errors, MTU."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from flannelette.services.core.backend_types import BACKEND_TYPES
from flannelette.services.core.errors import InvalidInput, Misconfigured
from flannelette.services.core.family import FAMILIES, IPV4, IPV6
from flannelette.services.core.formats.gojson import GoObject
from flannelette.services.core.leases.lease import Subnet, VxlanData
from flannelette.services.core.secret import Secret
from flannelette.services.dataplane.backends import BACKENDS
from flannelette.services.dataplane.backends.backend import Backend, NodeIdentity
from flannelette.services.dataplane.backends.host_gw import HostGw
from flannelette.services.dataplane.backends.ipip import Ipip
from flannelette.services.dataplane.backends.ipsec import Ipsec
from flannelette.services.dataplane.backends.routes import route_metric
from flannelette.services.dataplane.backends.udp import Udp
from flannelette.services.dataplane.backends.vxlan import Vxlan, VxlanLink, stable_mac
from flannelette.services.dataplane.backends.wireguard import Wireguard
from flannelette.services.dataplane.links.desired import LinkSpec
from flannelette.services.dataplane.underlay import connected_routes
from tests import paths
from tests.examples.dataplane import (
    CAPTURED,
    DEVICE,
    DUAL_LINKS,
    DUAL_UNDERLAY,
    ETH0,
    HOST_GW_LINKS,
    LINKS,
    UNDERLAY,
    lines,
    route,
    subnet,
)

NODE = NodeIdentity("n1")
GOLDEN = paths.GOLDEN / "dataplane"


def test_vxlan_peers_are_the_captured_objects_but_for_protocol_and_metric() -> None:
    objects = frozenset(o for part in CAPTURED.values() for o in Vxlan().peer_objects([part], (), LINKS))
    assert lines(objects) == (GOLDEN / "vxlan-peers.txt").read_text().splitlines()


def test_host_gw_peers_are_the_captured_routes_but_for_protocol_and_metric() -> None:
    parts = [subnet("10.5.41.0/24", "10.99.0.13"), subnet("10.5.78.0/24", "10.99.0.12")]
    objects = frozenset(o for part in parts for o in HostGw().peer_objects([part], (), HOST_GW_LINKS))
    assert lines(objects) == (GOLDEN / "host-gw-peers.txt").read_text().splitlines()


def test_an_ipv6_peer_goes_the_same_way() -> None:
    part = subnet("fd00:10:5:35::/64", "fd00:99::12", "06:0c:56:6d:fb:b4")
    assert lines(Vxlan().peer_objects([part], (), DUAL_LINKS)) == [
        "06:0c:56:6d:fb:b4 dev flannel-v6.1 dst fd00:99::12 self permanent",
        "fd00:10:5:35:: dev flannel-v6.1 lladdr 06:0c:56:6d:fb:b4 PERMANENT",
        "fd00:10:5:35::/64 via fd00:10:5:35:: dev flannel-v6.1 proto 77 metric 54 onlink",
    ]


@pytest.mark.parametrize(
    ("part", "reason"),
    [
        (subnet("10.5.53.0/24", "10.99.0.12"), "the lease has no VTEP MAC"),
        (subnet("10.5.53.0/24", "10.99.0.12", "06:0c:56:6d:fb:b3", vni=9), "the lease has VNI 9, this network 1"),
        (subnet("10.5.53.0/24", "", "06:0c:56:6d:fb:b3"), "the lease has no public IPv4 address"),
    ],
)
def test_a_lease_that_vxlan_cannot_carry_says_why(part: Subnet, reason: str) -> None:
    assert Vxlan().rejection(part, LINKS) == reason


def test_flannel_publishes_sixteen_bits_of_a_vni_or_none() -> None:
    backend = Vxlan(vni=0x12345)
    for vni in (0x12345, 0x2345, 0):
        assert not backend.rejection(subnet("10.5.53.0/24", "10.99.0.12", "06:0c:56:6d:fb:b3", vni), LINKS)


def test_a_host_gw_lease_without_an_address_says_so() -> None:
    assert HostGw().rejection(subnet("10.5.53.0/24"), HOST_GW_LINKS) == "the lease has no public IPv4 address"


def test_host_gw_refuses_a_public_address_that_is_not_on_the_interface() -> None:
    behind_nat = replace(UNDERLAY, public_addresses=(ip_address("203.0.113.5"),))
    with pytest.raises(Misconfigured, match=r"needs the public IPv4 address 203\.0\.113\.5 on eth0"):
        HostGw().link(IPV4, behind_nat, NODE)
    assert HostGw().link(IPV4, UNDERLAY, NODE) is None


@pytest.mark.parametrize(
    ("option", "devices", "pods"),
    [(0, [1450, 1430], 1450), (1490, [1440, 1430], 1440), (1400, [1350, 1350], 1350), (9000, [1450, 1430], 1450)],
)
def test_each_device_has_the_mtu_that_flanneld_s_gets(option: int, devices: list[int], pods: int) -> None:
    backend = Vxlan(parent_mtu=option)
    specs = [backend.link(family, DUAL_UNDERLAY, NODE) for family in FAMILIES]
    assert [spec.mtu for spec in specs if spec] == devices
    assert backend.mtu(DUAL_UNDERLAY) == pods
    assert backend.mtu(replace(DUAL_UNDERLAY, addresses=DUAL_UNDERLAY.addresses[1:])) == devices[1]
    assert bool(backend.warnings(DUAL_UNDERLAY)) is (option == 9000)


def test_host_gw_leaves_the_underlay_s_mtu() -> None:
    assert HostGw().mtu(UNDERLAY) == 1500
    assert HostGw().warnings(UNDERLAY) == ()


def test_the_device_is_as_flannels_with_a_stable_mac() -> None:
    assert Vxlan(vni=7, port=4789, learning=True, gbp=True).link(IPV4, UNDERLAY, NODE) == LinkSpec(
        "flannel.7",
        IPV4,
        VxlanLink(7, 4789, 2, "10.99.0.11", learning=True, gbp=True),
        "eth0",
        1450,
        stable_mac("n1", "flannel.7"),
    )
    v6 = Vxlan().link(IPV6, DUAL_UNDERLAY, NODE)
    assert v6 is not None
    assert (v6.name, v6.attributes, v6.mtu) == ("flannel-v6.1", VxlanLink(1, 8472, 2, "fd00:99::11"), 1430)


def test_a_stable_mac_is_local_unicast_and_differs_by_node_and_device() -> None:
    macs = {stable_mac(node, device) for node in ("n1", "n2") for device in ("flannel.1", "flannel-v6.1")}
    assert len(macs) == 4
    assert all(int(mac[:2], 16) & 0x03 == 0x02 for mac in macs)
    assert stable_mac("n1", "flannel.1") == stable_mac("n1", "flannel.1")


def test_what_is_published() -> None:
    assert Vxlan(vni=5).lease_data(IPV4, DEVICE) == VxlanData(5, DEVICE.mac)
    assert Vxlan().lease_data(IPV4, None) is None
    assert HostGw().lease_data(IPV4, DEVICE) is None


@pytest.mark.parametrize(
    ("options", "backend"),
    [
        ("{}", Vxlan()),
        ('{"vni":5,"PORT":4789,"Mtu":1400,"learning":true,"gbp":true}', Vxlan(5, 4789, 1400, True, True)),
        ('{"Port":0,"Unknown":[]}', Vxlan()),
        ('{"VNI":16777215}', Vxlan(vni=16777215)),
    ],
)
def test_options_are_flannels(options: str, backend: Vxlan) -> None:
    assert Vxlan.parse(GoObject.parse(options, "Backend")) == backend


def test_with_direct_routing_a_neighbour_is_reached_by_a_plain_route_in_the_same_slot() -> None:
    backend = Vxlan.parse(GoObject.parse('{"DirectRouting":true}', "Backend"))
    assert backend == Vxlan(direct_routing=True)
    near = connected_routes([route("10.99.0.0/16 dev eth0")], ETH0)
    (direct,) = backend.peer_objects([CAPTURED["n2"]], (), replace(LINKS, on_link=near))
    assert lines({direct}) == ["10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1334"]
    tunnelled = list(backend.peer_objects([CAPTURED["n2"]], (), LINKS))
    assert len(tunnelled) == 3
    assert direct.key in {item.key for item in tunnelled}
    far = list(backend.peer_objects([CAPTURED["n4"]], (), replace(LINKS, on_link=near)))
    assert len(far) == 3
    assert len(list(Vxlan().peer_objects([CAPTURED["n2"]], (), replace(LINKS, on_link=near)))) == 3


def test_an_ipv6_neighbour_is_reached_by_a_plain_route_too() -> None:
    near = connected_routes([route("fd00:99::/64 dev eth0 metric 256")], ETH0)
    part = subnet("fd00:10:5:35::/64", "fd00:99::12", "06:0c:56:6d:fb:b4")
    objects = Vxlan(direct_routing=True).peer_objects([part], (), replace(DUAL_LINKS, on_link=near))
    assert lines(objects) == ["fd00:10:5:35::/64 via fd00:99::12 dev eth0 proto 77 metric 54"]


@pytest.mark.parametrize(
    ("options", "key"),
    [('{"VNI":-1}', "VNI"), ('{"VNI":16777216}', "VNI"), ('{"Port":65536}', "Port"), ('{"Learning":1}', "Learning")],
)
def test_a_wrong_option_is_named(options: str, key: str) -> None:
    with pytest.raises(InvalidInput, match=f"^{key} in Backend"):
        Vxlan.parse(GoObject.parse(options, "Backend"))


def test_each_backend_that_a_network_may_have_is_built() -> None:
    assert set(BACKENDS) == set(BACKEND_TYPES)


@pytest.mark.parametrize(
    ("cidr", "metric"),
    [
        ("10.5.53.0/24", 1334),
        ("10.5.54.0/24", 1335),
        ("10.255.255.0/24", 65536),
        ("11.0.0.0/24", 1),
        ("fd00::/64", 1),
    ],
)
def test_the_metric_is_the_subnets_index_and_never_zero(cidr: str, metric: int) -> None:
    assert route_metric(subnet(cidr).cidr) == metric


@pytest.mark.parametrize(
    "backend",
    [
        Ipip(),
        Ipsec(),
        Udp(),
        Udp(is_in_kernel=True),
        Vxlan(),
        Wireguard(private_key=Secret(bytes(32)), public_key=bytes(32)),
    ],
    ids=lambda backend: type(backend).__name__,
)
def test_a_device_that_was_left_is_known_by_its_kind(backend: Backend) -> None:
    spec = backend.link(IPV4, UNDERLAY, NodeIdentity("n1"))
    assert spec is not None
    assert isinstance(spec.attributes, tuple(backend.link_kinds))
    assert spec.attributes.is_named(spec.name)
