"""DirectRouting: a peer that is a neighbour is reached without VXLAN, until the underlay's routes say otherwise."""

from collections.abc import Iterator
from typing import Final

import pytest

from tests.hosts.dataplane import Cluster, cluster_in
from tests.hosts.namespaces import NetworkNamespace, monitored
from tests.waiting import contains, equals, eventually

DIRECT: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan","DirectRouting":true}}'
NEAR, FAR = "06:0c:56:6d:fb:b3", "32:97:99:5c:b1:6f"
PLAIN: Final = "10.5.53.0/24 via 10.99.0.12 dev eth0 proto 77 metric 1334"
TUNNEL: Final = "10.5.53.0/24 via 10.5.53.0 dev flannel.1 proto 77 metric 1334 onlink"
FAR_TUNNEL: Final = "10.5.82.0/24 via 10.5.82.0 dev flannel.1 proto 77 metric 1363 onlink"
FAR_FDB: Final = f"{FAR} dst 10.98.0.14 self permanent"


@pytest.fixture
def cluster(netns: NetworkNamespace) -> Iterator[Cluster]:
    with cluster_in(netns, DIRECT) as made:
        yield made


async def test_a_peer_moves_between_direct_and_tunnelled_and_leaves_nothing_behind(
    cluster: Cluster,
) -> None:
    """A regression test of defect 7 of flannel v0.28."""
    await cluster.join("n2", "10.99.0.12", NEAR, "10.5.53.0/24")
    await cluster.join("n4", "10.98.0.14", FAR, "10.5.82.0/24")
    async with cluster.dataplane("--audit-interval=600") as running:
        await running.until(peers=2)
        assert cluster.routes() == [PLAIN, FAR_TUNNEL]
        assert cluster.fdb() == [FAR_FDB]
        assert cluster.neighbours() == [f"10.5.82.0 lladdr {FAR} PERMANENT"]
        repairs = (await running.status()).repairs
        with monitored(cluster.namespace, cluster.directory / "monitor.log") as lines:
            cluster.ip("route add 10.99.0.12/32 via 10.99.0.1 dev eth0")
            await eventually(cluster.routes, contains(TUNNEL))
            await eventually(cluster.fdb, equals([f"{NEAR} dst 10.99.0.12 self permanent", FAR_FDB]))
            cluster.ip("route del 10.99.0.12/32")
            await eventually(cluster.routes, equals([PLAIN, FAR_TUNNEL]))
            await eventually(cluster.fdb, equals([FAR_FDB]))
        assert not [line for line in lines if line.startswith("Deleted") and "/24" in line], "one replaces the other"
        cluster.ip("addr add 10.98.0.11/16 dev eth0")
        await eventually(cluster.routes, contains("10.5.82.0/24 via 10.98.0.14 dev eth0 proto 77 metric 1363"))
        await eventually(lambda: cluster.fdb() + cluster.neighbours(), equals([]))
        status = await running.until(peers=2)
        assert status.repairs == repairs, "what routes change is no repair"
        again = await running.resync(dry_run=True)
        assert list(again.commands) == []


async def test_the_entry_of_an_earlier_mac_goes(cluster: Cluster) -> None:
    """A regression test of defect 7 of flannel v0.28."""
    await cluster.join("n4", "10.98.0.14", FAR, "10.5.82.0/24")
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        await cluster.join("n4", "10.98.0.14", NEAR)
        await eventually(cluster.fdb, equals([f"{NEAR} dst 10.98.0.14 self permanent"]))
        assert cluster.neighbours() == [f"10.5.82.0 lladdr {NEAR} PERMANENT"]
