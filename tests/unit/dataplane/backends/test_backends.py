"""vxlan, host-gw, ipip and alloc: their objects are flanneld's but for protocol and metric; options, errors, MTU."""

import pytest

from flannelette.services.core.errors import InvalidInput, Misconfigured
from flannelette.services.core.leases.lease import VxlanData
from tests import paths
from tests.examples.backend_nodes import BackendNode, peer, refusal
from tests.examples.dataplane import CAPTURED

GOLDEN = paths.GOLDEN / "dataplane"
MAC = "06:0c:56:6d:fb:b3"
N2 = peer("10.5.53.0/24", "10.99.0.12", MAC)
SIX = peer("fd00:10:5:35::/64", "fd00:99::12", "06:0c:56:6d:fb:b4")
NEAR = "10.99.0.0/16"
DIRECT = '"DirectRouting":true'
TO_N2 = "proto 77 metric 1334"


@pytest.mark.parametrize(
    ("kind", "parts"),
    [
        ("vxlan", [*CAPTURED.values()]),
        ("host-gw", [peer("10.5.41.0/24", "10.99.0.13"), peer("10.5.78.0/24", "10.99.0.12")]),
    ],
)
def test_peers_are_the_captured_objects_but_for_protocol_and_metric(kind: str, parts: list[object]) -> None:
    node = BackendNode(kind)
    found = sorted(line for part in parts for line in node.objects(part))  # type: ignore[arg-type]  # subnets
    assert found == (GOLDEN / f"{kind}-peers.txt").read_text().splitlines()


@pytest.mark.parametrize(
    ("kind", "options", "near", "part", "expected"),
    [
        (
            "vxlan",
            "",
            "",
            SIX,
            [
                "06:0c:56:6d:fb:b4 dev flannel-v6.1 dst fd00:99::12 self permanent",
                "fd00:10:5:35:: dev flannel-v6.1 lladdr 06:0c:56:6d:fb:b4 PERMANENT",
                "fd00:10:5:35::/64 via fd00:10:5:35:: dev flannel-v6.1 proto 77 metric 54 onlink",
            ],
        ),
        ("vxlan", DIRECT, NEAR, N2, [f"10.5.53.0/24 via 10.99.0.12 dev eth0 {TO_N2}"]),
        ("vxlan", DIRECT, "fd00:99::/64", SIX, ["fd00:10:5:35::/64 via fd00:99::12 dev eth0 proto 77 metric 54"]),
        ("ipip", "", "", N2, [f"10.5.53.0/24 via 10.99.0.12 dev flannel.ipip {TO_N2} onlink"]),
        ("ipip", "", NEAR, N2, [f"10.5.53.0/24 via 10.99.0.12 dev flannel.ipip {TO_N2} onlink"]),
        ("ipip", DIRECT, NEAR, N2, [f"10.5.53.0/24 via 10.99.0.12 dev eth0 {TO_N2} onlink"]),
    ],
)
def test_a_peer_is_these_objects(kind: str, options: str, near: str, part: object, expected: list[str]) -> None:
    node = BackendNode(kind, options, families=(4, 6) if kind == "vxlan" else (4,), near=near)
    assert sorted(node.objects(part)) == expected  # type: ignore[arg-type]  # a subnet


@pytest.mark.parametrize("kind", ["vxlan", "ipip"])
def test_a_neighbour_is_reached_directly_in_the_slot_of_the_tunnel_and_nobody_else_is(kind: str) -> None:
    near, tunnel = BackendNode(kind, DIRECT, near=NEAR), BackendNode(kind)
    assert near.slots(N2) < tunnel.slots(N2) or near.slots(N2) == tunnel.slots(N2)
    far = CAPTURED["n4"]
    assert near.objects(far) == BackendNode(kind, DIRECT).objects(far) == tunnel.objects(far)
    assert BackendNode(kind, near=NEAR).objects(N2) == tunnel.objects(N2)
    assert (near.backend.follows_routes, tunnel.backend.follows_routes) == (True, False)


@pytest.mark.parametrize(
    ("kind", "options", "part", "reason"),
    [
        ("vxlan", "", peer("10.5.53.0/24", "10.99.0.12"), "the lease has no VTEP MAC"),
        ("vxlan", "", peer("10.5.53.0/24", "10.99.0.12", MAC, 9), "the lease has VNI 9, this network 1"),
        ("vxlan", "", peer("10.5.53.0/24", "", MAC), "the lease has no public IPv4 address"),
        # flannel publishes sixteen bits of a VNI, or none
        *(("vxlan", '"VNI":74565', peer("10.5.53.0/24", "10.99.0.12", MAC, vni), "") for vni in (0x12345, 0x2345, 0)),
        ("host-gw", "", peer("10.5.53.0/24"), "the lease has no public IPv4 address"),
        ("ipip", "", peer("10.5.53.0/24"), "the lease has no public IPv4 address"),
    ],
)
def test_a_lease_that_cannot_be_carried_says_why(kind: str, options: str, part: object, reason: str) -> None:
    assert BackendNode(kind, options).reason(part) == reason  # type: ignore[arg-type]  # a subnet


def test_host_gw_refuses_a_public_address_that_is_not_on_the_interface_and_needs_no_device() -> None:
    with pytest.raises(Misconfigured, match=r"needs the public IPv4 address 203\.0\.113\.5 on eth0"):
        BackendNode("host-gw", public=["203.0.113.5"])
    assert BackendNode("host-gw").creates() == []


@pytest.mark.parametrize(
    ("option", "devices", "pods"),
    [(0, [1450, 1430], 1450), (1490, [1440, 1430], 1440), (1400, [1350, 1350], 1350), (9000, [1450, 1430], 1450)],
)
def test_each_device_has_the_mtu_that_flanneld_s_gets(option: int, devices: list[int], pods: int) -> None:
    node = BackendNode("vxlan", f'"MTU":{option}', families=(4, 6))
    assert (node.mtus, node.mtu) == (devices, pods)
    assert bool(node.warnings) is (option == 9000)


@pytest.mark.parametrize(("kind", "mtu"), [("host-gw", 1500), ("alloc", 1500), ("ipip", 1480), ("vxlan", 1450)])
def test_pods_get_what_the_tunnel_leaves(kind: str, mtu: int) -> None:
    node = BackendNode(kind)
    assert (node.mtu, node.warnings) == (mtu, [])


def test_a_vxlan_device_is_as_flannels_with_a_stable_mac_that_it_publishes() -> None:
    node = BackendNode("vxlan", '"VNI":7,"Port":4789,"Learning":true,"GBP":true', families=(4, 6))
    first, *_, sixth = (each for each in node.creates() if "link add" in each)
    (four, six) = (data.mac for data in node.publishes if isinstance(data, VxlanData))
    assert first == (
        f"ip link add flannel.7 address {four} mtu 1450 type vxlan id 7 local 10.99.0.11 dev eth0 dstport 4789 "
        "learning gbp"
    )
    assert sixth.startswith(f"ip link add flannel-v6.7 address {six} mtu 1430 type vxlan id 7 local fd00:99::11 ")
    assert four != six
    assert all(int(mac[:2], 16) & 0x03 == 0x02 for mac in (four, six)), "local and unicast"
    assert BackendNode("vxlan", '"VNI":7', families=(4, 6)).publishes == node.publishes
    assert BackendNode("vxlan", '"vni":1,"Port":0,"Unknown":[]').creates() == BackendNode("vxlan").creates()
    assert BackendNode("host-gw").publishes == BackendNode("ipip").publishes == [None]


def test_an_ipip_device_is_flannels_and_changes_in_place_so_that_no_route_is_lost() -> None:
    node = BackendNode("ipip")
    created = "ip link add flannel.ipip mtu 1480 type ipip local 10.99.0.11 ttl inherit nopmtudisc"
    assert node.creates() == [
        created,
        "ip addr add 10.5.27.0/32 dev flannel.ipip",
        "ip link set flannel.ipip up",
    ]
    assert node.describes() == ["flannel.ipip: ipip local 10.99.0.11 ttl inherit nopmtudisc mtu 1480 down"]
    assert node.changes() == []
    edited = ["ip link set flannel.ipip type ipip local 10.99.0.11 ttl inherit nopmtudisc"]
    for found in ({"local": "10.99.0.99"}, {"pmtudisc": 1}, {"ttl": 64}):
        assert node.changes(found) == edited
    for again in (node.changes({"remote": "10.99.0.12"}), node.changes(kind="dummy", data={})):
        assert again == ["ip link del flannel.ipip", created]
    assert node.changes(mtu=1500) == ["ip link set flannel.ipip mtu 1480"]


@pytest.mark.parametrize(
    ("kind", "options", "said"),
    [
        ("vxlan", '"vni":5,"PORT":4789,"Mtu":1400,"learning":true,"gbp":true', ""),
        ("vxlan", '"Port":0,"Unknown":[]', ""),
        ("vxlan", '"VNI":16777215', ""),
        ("vxlan", '"VNI":-1', "VNI in Backend"),
        ("vxlan", '"VNI":16777216', "VNI in Backend"),
        ("vxlan", '"Port":65536', "Port in Backend"),
        ("vxlan", '"Learning":1', "Learning in Backend"),
        ("ipip", '"directrouting":true', ""),
        ("ipip", '"DirectRouting":1', "DirectRouting in Backend in the network configuration must be true or false"),
    ],
)
def test_options_are_flannels_and_a_wrong_one_is_named(kind: str, options: str, said: str) -> None:
    found = refusal(kind, options)
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_an_underlay_that_leaves_too_little_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"eth0 has MTU 80, of which IPIP leaves 60 bytes for packets"):
        BackendNode("ipip", mtu=80)


def test_a_peer_of_alloc_needs_nothing_and_is_carried() -> None:
    node = BackendNode("alloc")
    asked = ["overlay 10.5.53.1", "underlay 10.99.0.12!"]  # the bridge of its pods, and its host
    assert node.peer(peer("10.5.53.0/24", "10.99.0.12"), "") == ([], "", asked)
    other = "the backend type is vxlan, that of the network is none"
    assert node.peer(peer("10.5.53.0/24", "10.99.0.12"), "vxlan") == ([], other, [])
    assert node.creates() == []
