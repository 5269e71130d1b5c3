"""Keys of living nodes that another program overwrites: the nodes put them back, and nobody stops to forward.

Regression tests of hole 7.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

import pytest

from tests.etcd.server import EtcdServer
from tests.hosts.nodes import Node, Nodes, cluster_of_nodes

TIMES = 10
"""More than are answered at once."""


async def value_of_another_node(cluster: Nodes, node: Node, other: Node) -> None:
    """The node's key says what another one's does."""
    await cluster.put(f"subnets/{node.key}", cluster.get(f"subnets/{other.key}"))


async def garbage(cluster: Nodes, node: Node, other: Node) -> None:
    """The node's key is no lease."""
    await cluster.put(f"subnets/{node.key}", "garbage")


async def broadcast_address(cluster: Nodes, node: Node, other: Node) -> None:
    """The node is everywhere."""
    await change_value(cluster, node, PublicIP="255.255.255.255")


async def address_of_a_stranger(cluster: Nodes, node: Node, other: Node) -> None:
    """The node is somewhere else."""
    await change_value(cluster, node, PublicIP="10.99.0.77")


async def mac_of_a_stranger(cluster: Nodes, node: Node, other: Node) -> None:
    """As a flanneld that takes the node's place would write it; but the node is alive."""
    await change_value(cluster, node, BackendData={"VNI": 1, "VtepMAC": "02:00:00:00:00:77"})


async def another_backend(cluster: Nodes, node: Node, other: Node) -> None:
    """The node cannot be reached by the network's backend."""
    await change_value(cluster, node, BackendType="host-gw", BackendData=None)


async def holder_of_another_node(cluster: Nodes, node: Node, other: Node) -> None:
    """The node's lease is another one's."""
    await cluster.put(f"holders/{node.key}", holder(other.name, str(node.host.address)))


async def holder_with_the_address_of_another_node(cluster: Nodes, node: Node, other: Node) -> None:
    """The same, and the address too."""
    await cluster.put(f"holders/{node.key}", holder(other.name, str(other.host.address)))


async def holder_that_is_garbage(cluster: Nodes, node: Node, other: Node) -> None:
    """Nobody can say whose the node's lease is."""
    await cluster.put(f"holders/{node.key}", "garbage")


async def holder_that_is_gone(cluster: Nodes, node: Node, other: Node) -> None:
    """Nobody holds the node's lease."""
    await cluster.delete(f"holders/{node.key}")


async def both(cluster: Nodes, node: Node, other: Node) -> None:
    """The node's lease is another one's, by value and by holder."""
    await value_of_another_node(cluster, node, other)
    await holder_with_the_address_of_another_node(cluster, node, other)


async def lease_that_is_gone(cluster: Nodes, node: Node, other: Node) -> None:
    """As a node that leaves: others believe it."""
    await cluster.delete(f"subnets/{node.key}")


Act = Callable[[Nodes, Node, Node], Awaitable[None]]
BELIEVED: tuple[Act, ...] = (both, lease_that_is_gone)
"""What may be true, so that peers go by it until h1 has put its key back."""
LOSSLESS: tuple[Act, ...] = (
    value_of_another_node,
    mac_of_a_stranger,
    another_backend,
    garbage,
    broadcast_address,
    address_of_a_stranger,
    holder_of_another_node,
    holder_with_the_address_of_another_node,
    holder_that_is_garbage,
    holder_that_is_gone,
)


def in_turns(acts: Sequence[Act], cluster: Nodes) -> Iterator[tuple[Act, Node, Node]]:
    """Each act, the node that it is done to, and another one. Nodes in turn: one that suffers often has pauses."""
    nodes = cluster.nodes
    for number, act in enumerate(acts):
        yield act, nodes[number % len(nodes)], nodes[(number + 1) % len(nodes)]


@pytest.mark.parametrize("central", [False, True])
async def test_an_overwritten_key_is_put_back_and_no_packet_is_lost(own_etcd: EtcdServer, central: bool) -> None:
    lost = {}
    async with cluster_of_nodes(3, own_etcd, central=central) as cluster:
        before = whole(cluster)
        for act, node, other in in_turns(LOSSLESS, cluster):
            with cluster.stream() as stream:
                async with stream:
                    await act(cluster, node, other)
                    await cluster.until(lambda: whole(cluster) == before)
                    await cluster.until_as_before()
                    await asyncio.sleep(0.5)
            lost[act.__name__] = len(stream.lost)
    assert lost == dict.fromkeys(lost, 0)


async def test_a_change_that_has_to_be_believed_is_put_back_at_once(own_etcd: EtcdServer) -> None:
    async with cluster_of_nodes(3, own_etcd) as cluster:
        before = whole(cluster)
        for act, node, other in in_turns(BELIEVED, cluster):
            with cluster.stream() as stream:
                async with stream:
                    await act(cluster, node, other)
                    await cluster.until(lambda: whole(cluster) == before)
                    await cluster.until_as_before()
            assert len(stream.lost) < 200, f"{act.__name__}: more than a second of two paths"


async def change_value(cluster: Nodes, node: Node, **members: object) -> None:
    value = json.loads(cluster.get(f"subnets/{node.key}"))
    await cluster.put(f"subnets/{node.key}", json.dumps(value | members))


def holder(node: str, address: str) -> str:
    return json.dumps({"node": node, "public_ip": address, "public_ipv6": ""}, separators=(",", ":"))


def whole(cluster: Nodes) -> Sequence[str]:
    """What every node has in etcd."""
    return [cluster.get(f"{kind}/{node.key}") for node in cluster.nodes for kind in ("subnets", "holders")]


@asynccontextmanager
async def without_loss(cluster: Nodes) -> AsyncIterator[None]:
    """Whatever happens meanwhile, all is put back, and no ping is lost."""
    before = whole(cluster)
    with cluster.stream() as stream:
        async with stream:
            yield
            await cluster.until(lambda: whole(cluster) == before)
            await cluster.until_as_before()
    assert not stream.lost, f"{len(stream.lost)} of {stream.sent} pings lost"


async def test_a_node_that_restarts_finds_its_subnet_and_its_peers_whatever_their_keys_say(
    own_etcd: EtcdServer,
) -> None:
    """Its own key and that of a peer are overwritten while its services are down."""
    async with cluster_of_nodes(3, own_etcd) as cluster:
        h1 = cluster.nodes[0]
        async with without_loss(cluster):
            await h1.end()
            await value_of_another_node(cluster, *cluster.nodes[:2])
            await garbage(cluster, *cluster.nodes[1:])
            cluster.start_leases(h1)
            h1.start_dataplane()


async def test_a_node_that_restarts_keeps_what_the_overwritten_key_of_a_node_that_is_down_held(
    own_etcd: EtcdServer,
) -> None:
    async with cluster_of_nodes(3, own_etcd) as cluster:
        h1, h2, _ = cluster.nodes
        async with without_loss(cluster):
            await h2.end()
            assert h1.leases
            h1.leases.terminate()  # it leaves what it knows to the next one
            await h1.end()
            await garbage(cluster, h2, h1)
            cluster.start_leases(h1)
            h1.start_dataplane()
            await h1.dataplane.until(peers=2)
            cluster.start_leases(h2)
            h2.start_dataplane()


async def test_a_central_lease_service_that_starts_after_keys_were_overwritten_cuts_nobody_off(
    own_etcd: EtcdServer,
) -> None:
    async with cluster_of_nodes(3, own_etcd, central=True) as cluster, without_loss(cluster):
        assert cluster.central
        cluster.central.terminate()
        await value_of_another_node(cluster, *cluster.nodes[:2])
        await garbage(cluster, *cluster.nodes[1:])
        cluster.start_central()


async def test_a_program_that_overwrites_a_key_again_and_again_is_slowed_down_and_named(
    own_etcd: EtcdServer,
) -> None:
    async with cluster_of_nodes(2, own_etcd) as cluster:
        before = whole(cluster)
        h1, started = cluster.nodes[0], time.monotonic()
        async with without_loss(cluster):
            for _ in range(TIMES):
                await address_of_a_stranger(cluster, *cluster.nodes)
                await cluster.until(lambda: whole(cluster) == before)
            seconds = time.monotonic() - started
            status = await h1.dataplane.until(peers=1)
        log, said = h1.log("dataplane"), rf"he key of h1 \({h1.key}\) was overwritten or deleted \d+ times"
    assert seconds > 5, "after the first few there are pauses"
    assert re.search(said, log)
    assert [finding.check for finding in status.findings] == ["own-key"]
    assert re.search(said, status.findings[0].problem)


async def test_another_mac_once_a_second_diverts_no_packet_of_a_node_that_is_alive(own_etcd: EtcdServer) -> None:
    async with cluster_of_nodes(2, own_etcd) as cluster:
        before = whole(cluster)
        h1, h2 = cluster.nodes
        with cluster.stream() as stream:
            async with stream:
                for _ in range(TIMES):
                    await mac_of_a_stranger(cluster, h1, h2)
                    await asyncio.sleep(1)
                await cluster.until(lambda: whole(cluster) == before)
        assert not stream.lost, f"{len(stream.lost)} of {stream.sent} pings lost"
