"""The way of a packet between pods of two nodes, followed through the kernel of both."""

import pytest
from flannelette.dataplane.v1 import dataplane_pb2 as pb

from tests.faults.silent_scene import pod_address
from tests.faults.traced_pair import Pair, pair

ROOMS = {
    "vxlan": (
        "bridge, forwarding, ip rule, route, firewall, neighbour, fdb, device, underlay route, firewall, "
        "underlay neighbour",
        "underlay address, firewall, device, forwarding, ip rule, route, firewall, bridge, pod",
    ),
    "host-gw": (
        "bridge, forwarding, ip rule, route, firewall, underlay neighbour",
        "forwarding, ip rule, route, firewall, bridge, pod",
    ),
}


def rooms(answer: pb.TracePacketResponse) -> str:
    return ", ".join(step.room for step in answer.steps)


async def followed(scene: Pair, version: int) -> tuple[pb.TracePacketResponse, pb.TracePacketResponse]:
    source, destination = (pod_address(row) for node in scene.nodes for row in node.rows if row.version == version)
    return await scene.ask(0, source, destination), await scene.ask(1, source, destination)


@pytest.mark.parametrize(("backend", "families"), [("vxlan", "dual"), ("host-gw", "ipv4")])
async def test_each_node_follows_its_half_through_its_rooms(backend: str, families: str) -> None:
    async with pair(backend, families) as scene:
        for version in (4, 6) if families == "dual" else (4,):
            sent, taken = await followed(scene, version)
            assert (rooms(sent), rooms(taken)) == ROOMS[backend]
            for step in (*sent.steps, *taken.steps):
                wanted = pb.TRACE_VERDICT_UNKNOWN if step.room == "firewall" else pb.TRACE_VERDICT_PASSES
                assert step.verdict == wanted, step
            assert (sent.source_node, sent.destination_node) == ("n1", "n2")
            expected = {name: value for step in sent.steps for name, value in step.expects.items()}
            assert expected == {name: taken.facts[name] for name in expected}
