"""A node that a flanneld ran on: its device and routes are taken over without a gap, from the captures' state."""

from collections.abc import Iterator

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.hosts.dataplane import HOST_GW, VXLAN, Cluster, cluster_in
from tests.hosts.namespaces import NetworkNamespace, monitored

MAC = "76:92:07:f7:74:5d"
PEERS = {
    "n2": ("10.5.53.0", "10.99.0.12", "06:0c:56:6d:fb:b3"),
    "n4": ("10.5.82.0", "10.98.0.14", "32:97:99:5c:b1:6f"),
    "n3": ("10.5.97.0", "10.99.0.13", "0e:9d:40:24:9e:77"),
}
"""As in golden/vxlan/etcd.txt."""


@pytest.fixture
def vxlan(netns: NetworkNamespace) -> Iterator[Cluster]:
    with cluster_in(netns, VXLAN) as cluster:
        yield cluster


@pytest.fixture
def host_gw(netns: NetworkNamespace) -> Iterator[Cluster]:
    with cluster_in(netns, HOST_GW) as cluster:
        yield cluster


def leave_flanneld_state(cluster: Cluster) -> None:
    """What golden/vxlan/n1-after-stop shows."""
    cluster.ip(
        f"link add flannel.1 address {MAC} mtu 1450 type vxlan id 1 local 10.99.0.11 dev eth0 dstport 8472 nolearning"
    )
    cluster.ip("addr add 10.5.27.0/32 dev flannel.1")
    cluster.ip("link set flannel.1 up")
    for subnet, public, mac in PEERS.values():
        cluster.ip(f"neigh replace {subnet} lladdr {mac} dev flannel.1 nud permanent")
        cluster.run(f"bridge fdb replace {mac} dev flannel.1 dst {public} self permanent")
        cluster.ip(f"route replace {subnet}/24 via {subnet} dev flannel.1 proto boot onlink")
    (cluster.directory / "subnet.env").write_text("FLANNEL_NETWORK=10.5.0.0/16\nFLANNEL_SUBNET=10.5.27.1/24\n")


async def test_a_vxlan_device_stays_with_its_mac_and_its_routes_are_replaced_without_a_gap(vxlan: Cluster) -> None:
    leave_flanneld_state(vxlan)
    vxlan.ip("route add 10.5.200.0/24 via 10.5.200.0 dev flannel.1 onlink proto boot")  # of a peer that is gone
    vxlan.ip("route add 10.5.201.0/24 via 10.99.0.1 dev eth0 proto boot")  # not flannel's
    await vxlan.quiet()
    link, fdb, neighbours = vxlan.ip("-d link show flannel.1"), vxlan.fdb(), vxlan.neighbours()
    for node in ("n2", "n3"):
        subnet, public, mac = PEERS[node]
        await vxlan.join(node, public, mac, f"{subnet}/24")
    subnet, public, mac = PEERS["n4"]
    await vxlan.join("n4", public, mac, f"{subnet}/24")
    with monitored(vxlan.namespace, vxlan.directory / "monitor.log") as lines:
        async with vxlan.dataplane() as running:
            status = await running.until(peers=3)
            again = await running.resync(dry_run=True)
    assert list(again.commands) == []
    assert list(status.lease.subnets) == ["10.5.27.0/24"]
    assert [device.mac for device in status.devices] == [MAC]
    assert list(status.unclaimed) == ["10.5.201.0/24 via 10.99.0.1 dev eth0"]
    assert (vxlan.ip("-d link show flannel.1"), vxlan.fdb(), vxlan.neighbours()) == (link, fdb, neighbours)
    assert vxlan.routes() == [
        "10.5.201.0/24 via 10.99.0.1 dev eth0",
        "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink",
        "10.5.82.0/24 via 10.5.82.0 dev flannel.1 proto 77 metric 1363 onlink",
        "10.5.97.0/24 via 10.5.97.0 dev flannel.1 proto 77 metric 1378 onlink",
    ]
    assert not [line for line in lines if "lladdr" in line or "dst" in line], "neighbours and FDB stay untouched"
    assert [line for line in lines if "10.5.200.0/24" in line] == [
        "Deleted 10.5.200.0/24 via 10.5.200.0 dev flannel.1 onlink"
    ]
    for subnet, _, _ in PEERS.values():
        added, deleted = (line for line in lines if f"{subnet}/24" in line)
        assert added.startswith(f"{subnet}/24 via {subnet} dev flannel.1 proto 77 metric ")
        assert deleted.startswith(f"Deleted {subnet}/24 via {subnet} dev flannel.1 ")
        assert "77" not in deleted


async def test_a_device_that_does_not_fit_is_replaced(vxlan: Cluster) -> None:
    leave_flanneld_state(vxlan)
    vxlan.ip("link del flannel.1")
    vxlan.ip("link add flannel.1 type vxlan id 1 local 10.99.0.11 dev eth0 dstport 4789 nolearning")
    async with vxlan.dataplane() as running:
        await running.until()
        words = vxlan.ip("-d link show flannel.1").split()
        assert words[words.index("dstport") + 1] == "8472", words
        assert "nolearning" in words, words


async def test_host_gw_routes_that_say_what_we_want_are_adopted_and_others_are_not(host_gw: Cluster) -> None:
    ours = {"10.5.41.0": "10.99.0.13", "10.5.78.0": "10.99.0.12"}
    others = [
        "10.5.55.0/24 via 10.99.0.55 dev eth0",  # no lease has it
        "10.5.79.0/24 via 10.99.0.77 dev eth0",  # a lease's subnet, by another gateway
        "10.5.80.0/24 via 10.99.0.80 dev eth0 metric 4",  # as ours, but not flannel's metric
    ]
    for subnet, public in ours.items():
        host_gw.ip(f"route add {subnet}/24 via {public} dev eth0 proto boot")
    for route in others:
        host_gw.ip(f"route add {route}")
    for number, (subnet, public) in enumerate(
        [*ours.items(), ("10.5.79.0", "10.99.0.79"), ("10.5.80.0", "10.99.0.80")]
    ):
        await host_gw.join(f"n{number + 2}", public, subnet=f"{subnet}/24")
    with monitored(host_gw.namespace, host_gw.directory / "monitor.log") as lines:
        async with host_gw.dataplane() as running:
            await running.until(peers=2)
            await running.quiet()
            await running.resync()
            status = await running.until(peers=2, last_resync_changes=0)
    assert host_gw.routes() == sorted(
        [
            "10.5.41.0/24 via 10.99.0.13 dev eth0 proto 77 metric 1322",
            "10.5.78.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1359",
            "10.5.79.0/24 via 10.99.0.79 dev eth0 proto 77 metric 1360",
            "10.5.80.0/24 via 10.99.0.80 dev eth0 proto 77 metric 1361",
            *others,
        ]
    )
    assert sorted(status.unclaimed) == sorted(others)
    assert (status.peers.programmed, status.peers.shadowed) == (2, 2)
    assert list(status.devices) == []
    for subnet, public in ours.items():
        assert [line for line in lines if f"{subnet}/24" in line] == [
            f"{subnet}/24 via {public} dev eth0 proto 77 metric {1281 + int(subnet.split('.')[2])}",
            f"Deleted {subnet}/24 via {public} dev eth0",
        ]
    assert not [line for line in lines if line.startswith("Deleted") and "77" in line]


async def test_a_host_gw_peer_that_is_no_neighbour_fails_with_the_kernels_words(host_gw: Cluster) -> None:
    await host_gw.join("n4", "10.98.0.14", subnet="10.5.99.0/24")
    await host_gw.join("n2", "10.99.0.12", subnet="10.5.78.0/24")
    async with host_gw.dataplane() as running:
        status = await running.until(peers=1)
        assert status.peers.failed == 1
        (failed,) = [peer for peer in await running.peers() if peer.reason]
        assert failed.name == "10.5.99.0-24"
        assert "10.5.99.0/24 via 10.98.0.14 dev eth0 proto 77 metric 1380: " in failed.reason
        assert "Nexthop has invalid gateway" in failed.reason
        response = await running.resync()
        assert len(response.errors) == 1
        position = (await running.events())[-1].position
        host_gw.ip("addr add 10.98.0.1/16 dev eth0")
        await running.until(peers=2)
        (repair,) = await running.events(after=position, kinds=[pb.EVENT_KIND_REPAIR])
        assert repair.cause == "address added on eth0", "not because it is time for the next try"
