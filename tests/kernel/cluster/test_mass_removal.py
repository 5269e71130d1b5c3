"""Few nodes whose keys go all at once: nobody stops to forward, and every node has its subnet again.

Regression tests of hole 8.
"""

import asyncio
import signal
from collections.abc import Sequence

import pytest

from tests.etcd.server import EtcdMaker, EtcdServer
from tests.hosts.nodes import NETWORK, Nodes, cluster_of_nodes


@pytest.mark.parametrize(("count", "central"), [(4, False), (2, False), (4, True)])
async def test_a_deletion_of_every_key_below_ten_leases_loses_no_packet(
    own_etcd: EtcdServer, count: int, central: bool
) -> None:
    async with cluster_of_nodes(count, own_etcd, central=central) as cluster:
        with cluster.stream() as stream:
            async with stream:
                await asyncio.sleep(0.5)
                await cluster.delete("subnets/", "--prefix")
                await cluster.until_as_before()
                await cluster.delete("", "--prefix")
                await asyncio.sleep(3)
                await cluster.put("config", NETWORK)
                await cluster.until_as_before()
        assert_lossless(stream.sent, stream.lost)


async def test_an_etcd_that_is_wiped_below_ten_leases_loses_no_packet(
    own_etcd: EtcdServer, make_etcd: EtcdMaker
) -> None:
    async with cluster_of_nodes(4, own_etcd) as cluster:
        with cluster.stream() as stream:
            async with stream:
                await wipe(cluster, make_etcd)
                await asyncio.sleep(3)
                await cluster.put("config", NETWORK)
                await cluster.until_as_before()
        assert_lossless(stream.sent, stream.lost)


async def test_the_last_node_to_take_its_lease_in_an_emptied_etcd_keeps_its_routes(
    own_etcd: EtcdServer, make_etcd: EtcdMaker
) -> None:
    async with cluster_of_nodes(4, own_etcd) as cluster:
        first, *others, last = cluster.nodes
        late = [node.leases for node in (first, last) if node.leases]
        with cluster.stream() as stream:
            async with stream:
                for leases in late:
                    leases.signal(signal.SIGSTOP)
                await wipe(cluster, make_etcd)
                await cluster.put("config", NETWORK)
                await cluster.until(lambda: {node.key for node in others} == set(cluster.keys("subnets")))
                late[0].signal(signal.SIGCONT)  # it lists the leases of all but one
                await cluster.until(lambda: first.key in cluster.keys("subnets"))
                await asyncio.sleep(0.5)
                late[1].signal(signal.SIGCONT)
                await cluster.until_as_before()
        assert_lossless(stream.sent, stream.lost)


async def wipe(cluster: Nodes, make_etcd: EtcdMaker) -> None:
    """Its data are gone, and it is started anew."""
    old = cluster.etcd
    old.kill()
    cluster.etcd = EtcdServer(make_etcd.directory / "empty", port=old.port, peer_port=old.peer_port)
    cluster.etcd.directory.mkdir()
    make_etcd.stack.callback(cluster.etcd.discard)
    await asyncio.to_thread(cluster.etcd.start)


def assert_lossless(sent: int, lost: Sequence[object]) -> None:
    assert sent > 0
    assert not lost, f"{len(lost)} of {sent} pings lost"
