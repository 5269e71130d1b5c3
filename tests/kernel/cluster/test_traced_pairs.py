"""What loses packets between two addresses alone: the trace that doctor and connectivity run names it."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any, TypeAlias

import pytest
import pytest_asyncio

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.ctl.connect.call import ask
from tests.faults.silent_scene import pod_address
from tests.faults.traced_pair import Pair, probed_pair, state_of, words
from tests.faults.traced_rows import FAULTS_OF_PAIRS
from tests.patience import PATIENCE
from tests.shared import Shared, sharing

pytestmark = pytest.mark.asyncio(loop_scope="module")
Scenes: TypeAlias = Shared[None, Pair]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Scenes]:
    async with sharing(probed_pair, state_of) as shared:
        yield shared


async def told(scene: Pair, command: str) -> tuple[int, list[Any]]:
    """Exit code of doctor or connectivity, and the problems that it tells."""
    code, text = await scene.flannelette(command, "-o", "json")
    return code, json.loads(text[text.index("{") :])["problems"]


async def findings(scene: Pair) -> list[pb.Finding | masq_pb2.Finding]:
    """Those of all services of both nodes."""
    found: list[pb.Finding | masq_pb2.Finding] = []
    for running, targets in zip(scene.running, scene.targets().values(), strict=True):
        found += (await running.status()).findings
        answer = await ask(
            targets["masq"], lambda c: MasqServiceStub(c).GetStatus(masq_pb2.GetStatusRequest()), PATIENCE
        )
        found += answer.status.findings
    return found


@pytest.mark.parametrize("name", FAULTS_OF_PAIRS)
async def test_the_trace_names_what_no_finding_does(scenes: Scenes, name: str) -> None:
    fault = FAULTS_OF_PAIRS[name]
    async with scenes.borrowed(None) as scene:
        rows = {node.name: row for node in scene.nodes for row in node.rows if row.version == fault.version}
        said = words(scene) | {f"{node}_pod": pod_address(row) for node, row in rows.items()}
        target = said["n2_pod"] if fault.is_of_pod else rows["n2"].subnet
        says, cure = fault.says.format_map(said), fault.cure.format_map(said)
        node = scene.n1 if fault.on == "n1" else scene.n2
        assert await scene.answers(scene.n1.namespace, target)
        await node.types(fault.act.format_map(said))
        assert not await scene.answers(scene.n1.namespace, target)
        assert fault.is_of_pod or await scene.flows(fault.version), "a whole node would be a finding"
        seen: object = None
        try:
            async with asyncio.timeout(3 * PATIENCE):
                while True:
                    code, problems = await told(scene, "connectivity")
                    traced = [each for each in problems if each["check"] == "trace" and says in each["cause"]]
                    of_silence = [each for each in problems if each["check"] in ("peer-tunnel", "peer-down")]
                    seen = code, problems
                    if code == 1 and len(traced) == 1 and not of_silence:
                        break
                (found,) = traced
                assert found["nodes"] == [fault.on]
                assert found["cure"].startswith(cure), found
                while not fault.is_of_pod:
                    code, problems = await told(scene, "doctor")
                    seen = code, problems
                    spoken = {node for each in problems for node in each["nodes"] if says in each["cause"]}
                    if code == 1 and spoken == {"n1", "n2"}:
                        break
        except TimeoutError:
            raise AssertionError(seen) from None
        found_too = [each for each in await findings(scene) if says in each.cause]
        assert bool(found_too) is fault.is_found, found_too
        await node.types(fault.undo.format_map(said) or found["cure"])
        async with asyncio.timeout(PATIENCE):
            while not await scene.answers(scene.n1.namespace, target):
                pass
            while (await told(scene, "doctor"))[0]:
                pass
