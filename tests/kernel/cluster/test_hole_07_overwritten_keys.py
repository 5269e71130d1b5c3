"""Keys of living nodes that another program overwrites: the nodes put them back, and nobody stops to forward."""

import asyncio
import json
import re
import time
from collections.abc import Sequence

import pytest

from tests.etcd.server import EtcdServer
from tests.hosts.nodes import Node, Nodes, cluster_of_nodes


async def value_of_another_node(cluster: Nodes) -> None:
    """h1's key says what h2's does."""
    h1, h2, _ = cluster.nodes
    await cluster.put(f"subnets/{h1.key}", cluster.get(f"subnets/{h2.key}"))


async def garbage(cluster: Nodes) -> None:
    """h2's key is no lease."""
    await cluster.put(f"subnets/{cluster.nodes[1].key}", "garbage")


async def broadcast_address(cluster: Nodes) -> None:
    """h1 is everywhere."""
    await change_value(cluster, cluster.nodes[0], PublicIP="255.255.255.255")


async def address_of_a_stranger(cluster: Nodes) -> None:
    """h1 is somewhere else."""
    await change_value(cluster, cluster.nodes[0], PublicIP="10.99.0.77")


async def mac_of_a_stranger(cluster: Nodes) -> None:
    """As a flanneld that takes h1's place would write it, so that others have to believe it until h1 has spoken."""
    await change_value(cluster, cluster.nodes[0], BackendData={"VNI": 1, "VtepMAC": "02:00:00:00:00:77"})


async def holder_of_another_node(cluster: Nodes) -> None:
    """h1's lease is h2's."""
    h1 = cluster.nodes[0]
    await cluster.put(f"holders/{h1.key}", holder("h2", str(h1.host.address)))


async def holder_with_the_address_of_another_node(cluster: Nodes) -> None:
    """The same, and the address too."""
    h1, h2, _ = cluster.nodes
    await cluster.put(f"holders/{h1.key}", holder("h2", str(h2.host.address)))


async def holder_that_is_garbage(cluster: Nodes) -> None:
    """Nobody can say whose h1's lease is."""
    await cluster.put(f"holders/{cluster.nodes[0].key}", "garbage")


async def holder_that_is_gone(cluster: Nodes) -> None:
    """Nobody holds h1's lease."""
    await cluster.delete(f"holders/{cluster.nodes[0].key}")


async def both(cluster: Nodes) -> None:
    """h1's lease is h2's, by value and by holder."""
    await value_of_another_node(cluster)
    await holder_with_the_address_of_another_node(cluster)


async def lease_that_is_gone(cluster: Nodes) -> None:
    """As a node that leaves: others believe it."""
    await cluster.delete(f"subnets/{cluster.nodes[0].key}")


BELIEVED = (mac_of_a_stranger, both, lease_that_is_gone)
"""What may be true, so that peers go by it until h1 has put its key back."""
LOSSLESS = (
    value_of_another_node,
    garbage,
    broadcast_address,
    address_of_a_stranger,
    holder_of_another_node,
    holder_with_the_address_of_another_node,
    holder_that_is_garbage,
    holder_that_is_gone,
)


@pytest.mark.parametrize("central", [False, True])
async def test_hole_07_an_overwritten_key_is_put_back_and_no_packet_is_lost(
    own_etcd: EtcdServer, central: bool
) -> None:
    lost = {}
    async with cluster_of_nodes(3, own_etcd, central=central) as cluster:
        before = whole(cluster)
        for act in LOSSLESS:
            with cluster.stream() as stream:
                async with stream:
                    await act(cluster)
                    await cluster.until(lambda: whole(cluster) == before)
                    await cluster.until_as_before()
                    await asyncio.sleep(0.5)
            lost[act.__name__] = len(stream.lost)
    assert lost == dict.fromkeys(lost, 0)


async def test_hole_07_a_change_that_has_to_be_believed_is_put_back_at_once(own_etcd: EtcdServer) -> None:
    async with cluster_of_nodes(3, own_etcd) as cluster:
        before = whole(cluster)
        for act in BELIEVED:
            with cluster.stream() as stream:
                async with stream:
                    await act(cluster)
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


async def test_hole_07_a_node_that_restarts_finds_its_subnet_and_its_peers_whatever_their_keys_say(
    own_etcd: EtcdServer,
) -> None:
    """Its own key and that of a peer are overwritten while its services are down."""
    async with cluster_of_nodes(3, own_etcd) as cluster:
        before = whole(cluster)
        h1 = cluster.nodes[0]
        with cluster.stream() as stream:
            async with stream:
                await h1.end()
                await value_of_another_node(cluster)
                await garbage(cluster)
                cluster.start_leases(h1)
                h1.start_dataplane()
                await cluster.until(lambda: whole(cluster) == before)
                await cluster.until_as_before()
        assert not stream.lost, f"{len(stream.lost)} of {stream.sent} pings lost"


async def test_hole_07_a_node_that_restarts_keeps_what_the_overwritten_key_of_a_node_that_is_down_held(
    own_etcd: EtcdServer,
) -> None:
    async with cluster_of_nodes(3, own_etcd) as cluster:
        before = whole(cluster)
        h1, h2, _ = cluster.nodes
        with cluster.stream() as stream:
            async with stream:
                await h2.end()
                assert h1.leases
                h1.leases.terminate()  # it leaves what it knows to the next one
                await h1.end()
                await garbage(cluster)
                cluster.start_leases(h1)
                h1.start_dataplane()
                await h1.dataplane.until(peers=2)
                cluster.start_leases(h2)
                h2.start_dataplane()
                await cluster.until(lambda: whole(cluster) == before)
                await cluster.until_as_before()
        assert not stream.lost, f"{len(stream.lost)} of {stream.sent} pings lost"


async def test_hole_07_a_central_lease_service_that_starts_after_keys_were_overwritten_cuts_nobody_off(
    own_etcd: EtcdServer,
) -> None:
    async with cluster_of_nodes(3, own_etcd, central=True) as cluster:
        before = whole(cluster)
        with cluster.stream() as stream:
            async with stream:
                assert cluster.central
                cluster.central.terminate()
                await value_of_another_node(cluster)
                await garbage(cluster)
                cluster.start_central()
                await cluster.until(lambda: whole(cluster) == before)
                await cluster.until_as_before()
        assert not stream.lost, f"{len(stream.lost)} of {stream.sent} pings lost"


async def test_hole_07_a_program_that_overwrites_a_key_again_and_again_is_slowed_down_and_named(
    own_etcd: EtcdServer,
) -> None:
    async with cluster_of_nodes(2, own_etcd) as cluster:
        before = whole(cluster)
        h1, started = cluster.nodes[0], time.monotonic()
        with cluster.stream() as stream:
            async with stream:
                for _ in range(10):
                    await address_of_a_stranger(cluster)
                    await cluster.until(lambda: whole(cluster) == before)
                seconds = time.monotonic() - started
                status = await h1.dataplane.until(peers=1)
                await cluster.until_as_before()
        assert not stream.lost, f"{len(stream.lost)} of {stream.sent} pings lost"
        log, said = h1.log("dataplane"), rf"he key of h1 \({h1.key}\) was overwritten or deleted \d+ times"
    assert seconds > 5, "after the first few there are pauses"
    assert re.search(said, log)
    assert [finding.check for finding in status.findings] == ["own-key"]
    assert re.search(said, status.findings[0].problem)
