"""The path of a packet between pods of two nodes, followed through the kernel of both."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.faults.silent_scene import pod_address
from tests.faults.traced_pair import Pair, pair, paused_pair, state_of, words
from tests.faults.traced_rows import FAULTS, HARMLESS
from tests.patience import PATIENCE
from tests.shared import Shared, sharing

pytestmark = pytest.mark.asyncio(loop_scope="module")

KINDS = {
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


def kinds(answer: pb.TracePacketResponse) -> str:
    return ", ".join(step.kind for step in answer.steps)


async def followed(scene: Pair, version: int) -> tuple[pb.TracePacketResponse, pb.TracePacketResponse]:
    source, destination = (pod_address(row) for node in scene.nodes for row in node.rows if row.version == version)
    return await scene.ask(0, source, destination), await scene.ask(1, source, destination)


@pytest.mark.parametrize(("backend", "families"), [("vxlan", "dual"), ("host-gw", "ipv4")])
async def test_each_node_follows_its_half_through_the_kernel(backend: str, families: str) -> None:
    async with pair(backend, families) as scene:
        for version in (4, 6) if families == "dual" else (4,):
            sent, taken = await followed(scene, version)
            assert (kinds(sent), kinds(taken)) == KINDS[backend]
            for step in (*sent.steps, *taken.steps):
                wanted = pb.TRACE_VERDICT_UNKNOWN if step.kind == "firewall" else pb.TRACE_VERDICT_PASSES
                assert step.verdict == wanted, step
            assert (sent.source_node, sent.destination_node) == ("n1", "n2")
            expected = {name: value for step in sent.steps for name, value in step.expects.items()}
            assert expected == {name: taken.facts[name] for name in expected}


Scenes: TypeAlias = Shared[None, Pair]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Scenes]:
    async with sharing(paused_pair, state_of) as shared:
        yield shared


async def ways(scene: Pair, version: int, on: str = "") -> tuple[int, Any]:
    """Exit code, and the ways there and back as JSON tells them."""
    source, destination = (pod_address(row) for node in scene.nodes for row in node.rows if row.version == version)
    code, text = await scene.flannelette("trace", source, destination, "-o", "json", on=on)
    return code, json.loads(text)["paths"]


def first_broken(way: Any) -> Any:
    return next((step for step in way["steps"] if step["verdict"] == "BROKEN"), None)


@pytest.mark.parametrize("name", FAULTS)
async def test_the_first_step_that_loses_the_packet_is_marked(scenes: Scenes, name: str) -> None:
    fault = FAULTS[name]
    async with scenes.borrowed(None) as scene:
        said = words(scene)
        node = scene.n1 if fault.on == "n1" else scene.n2
        await node.types(fault.act.format_map(said))
        code, (there, back) = await ways(scene, fault.version)
        flows = await scene.flows(fault.version)
        await node.types(fault.undo.format_map(said))
        found = first_broken(back if fault.is_back else there)
        assert found is not None, there
        assert (found["node"], found["kind"]) == (fault.found_on or fault.on, fault.kind), found
        assert fault.says.format_map(said) in found["reason"], found
        assert not (fault.is_back and first_broken(there))
        assert code == 1
        assert not flows, "what is marked does lose packets"
        async with asyncio.timeout(PATIENCE):
            while not await scene.flows(fault.version):
                pass


@pytest.mark.parametrize("name", HARMLESS)
async def test_what_loses_nothing_is_not_marked(scenes: Scenes, name: str) -> None:
    on, act, undo = HARMLESS[name]
    async with scenes.borrowed(None) as scene:
        node = scene.n1 if on == "n1" else scene.n2
        await node.types(act.format_map({}))
        code, (there, back) = await ways(scene, 4)
        assert await scene.flows(4)
        await node.types(undo)
        assert (code, there["outcome"], back["outcome"]) == (0, "arrives", "arrives"), there


async def test_one_node_tells_its_half(scenes: Scenes) -> None:
    async with scenes.borrowed(None) as scene:
        code, (there, back) = await ways(scene, 4, on="n1")
        assert (code, {step["node"] for step in there["steps"]}) == (0, {"n1"})
        assert there["outcome"] == "nothing is wrong on n1; the rest is not known"
        assert there["remarks"][0].startswith("How n2 receives is not known")
        assert back["remarks"][0].startswith("How n2 sends is not known")


async def test_the_command_line_shows_every_step(scenes: Scenes) -> None:
    async with scenes.borrowed(None) as scene:
        code, text = await scene.flannelette("trace", "n1", "10.5.53.2")
        assert code == 0, text
        assert "10.5.53.0/24 via 10.5.53.0 dev flannel.1 onlink" in text
        assert "  flanneld  " in text, "whose the route is"
        code, text = await scene.flannelette("trace", "10.5.27.2", "198.51.100.9")
        assert (code, "source becomes another" in text) == (0, True), text
        code, text = await scene.flannelette("trace", "10.5.27.2", "10.5.99.2")
        assert (code, "No node has a lease with 10.5.99.2" in text) == (1, True), text
        code, text = await scene.flannelette("trace", "10.5.27.2", "h9")
        assert (code, "no node with a lease has this name" in text) == (1, True), text
        code, text = await scene.flannelette("trace", "10.5.27.2", "10.5.53.2", on="nowhere")
        assert (code, "no directory" in text) == (2, True), text
