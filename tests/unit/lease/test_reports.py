"""The last report of each node: what is believed, what is ignored, what is forgotten."""

import asyncio

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.limits import LONGEST_NAME
from tests.stores.played import settle
from tests.stores.reporting import FAILED, Scene


async def test_the_newest_report_of_a_node_counts(scene: Scene) -> None:
    for _ in range(3):
        scene.enter()
    await scene.connect("a")
    for cursor in ("e:1", "e:3", "e:3"):
        assert await scene.say("a", cursor)
    assert await scene.is_converged(3)


@pytest.mark.parametrize("cursor", ["e:1", "other:3", "nonsense", "e:4", "e:99999999999999999999"])
async def test_a_report_that_says_nothing_is_ignored(scene: Scene, cursor: str) -> None:
    for _ in range(3):
        scene.enter()
    await scene.connect("a")
    await scene.say("a", "e:2")
    assert not await scene.say("a", cursor)
    node = await scene.node("a")
    assert node
    assert (node.cursor, node.behind) == ("e:2", 1)


async def test_a_report_of_a_cursor_that_was_compacted_counts_as_far_as_it_goes(scene: Scene) -> None:
    await scene.connect("a")
    for _ in range(300):
        scene.enter()
    assert await scene.say("a", "e:5")
    node = await scene.node("a")
    assert node
    assert node.behind == 295
    assert await scene.is_forgotten(5)


async def test_an_empty_cursor_or_a_newer_stream_takes_back_what_was_said(scene: Scene) -> None:
    await scene.connect("a")
    for take_back in (lambda: scene.say("a", ""), lambda: scene.connect("a")):
        await scene.say("a", "e:0")
        assert await scene.lacking(0) == []
        await take_back()
        assert await scene.lacking(0) == ["a"]
    node = await scene.node("a")
    assert node
    assert not node.HasField("report_time")


async def test_what_a_node_reports_is_kept_and_bounded(scene: Scene) -> None:
    await scene.connect("a")
    failed = [pb.FailedLease(name=f"lease{n}", reason="x" * 10_000) for n in range(1000)]
    findings = [pb.Finding(check="x" * 10_000, problem="y" * 10_000, cure="z" * 10_000, evidence="e" * 10_000)] * 1000
    await scene.say("a", "e:0", *failed, findings=findings, version="v" * 10_000)
    node = await scene.node("a")
    assert node
    assert (len(node.failed), node.failed_count, len(node.failed[0].reason)) == (50, 1000, 500)
    assert (len(node.findings), len(node.version)) == (8, LONGEST_NAME)
    assert max(len(getattr(node.findings[0], name)) for name in ("problem", "cure", "evidence")) == 500
    assert list((await scene.converged()).nodes_failed) == ["a"]
    await scene.say("a", "e:0")
    assert not (await scene.converged()).nodes_failed


async def test_a_node_that_left_is_remembered_for_an_hour_unless_it_comes_back(scene: Scene) -> None:
    await scene.connect("a")
    await scene.say("a", "e:0", FAILED)
    await scene.leave("a")
    assert not (await scene.converged()).nodes_failed
    scene.now += 3599
    node = await scene.node("a")
    assert node
    assert list(node.failed) == [FAILED]
    scene.now += 2
    assert await scene.node("a") is None
    await scene.connect("a")
    await scene.say("a", "e:0", FAILED)
    await scene.leave("a")
    await scene.connect("a")
    node = await scene.node("a")
    assert node
    assert not node.failed


async def test_reports_of_nobody_we_know_are_bounded(forgetful: Scene) -> None:
    for number in range(10):
        await forgetful.say(f"n{number}", "e:0")
    names = [node.name for node in (await forgetful.service.call("ListNodes")).nodes]
    assert names == ["n7", "n8", "n9"]


@pytest.mark.parametrize(("nodes", "pause"), [(1, 0.05), (50, 0.05), (1000, 1.0)])
async def test_many_nodes_are_asked_to_report_less_often(scene: Scene, nodes: int, pause: float) -> None:
    for number in range(nodes):
        await scene.connect(f"n{number}")
    answer = await scene.service.call("ReportProgress", node="n0", cursor="e:0")
    assert answer.pause.ToMilliseconds() == pause * 1000


@pytest.mark.parametrize("last", ["reports", "leaves"])
async def test_who_waits_for_convergence_is_woken_by_the_last_one_who_lacks_it(scene: Scene, last: str) -> None:
    await scene.connect("a")
    await scene.connect("b")
    waiting = asyncio.create_task(scene.converged(0, 60))
    await settle()
    await scene.say("a", "e:0")
    await settle()
    assert not waiting.done()
    await (scene.say("b", "e:0") if last == "reports" else scene.leave("b"))
    assert (await asyncio.wait_for(waiting, 1)).converged


async def test_a_wait_ends_when_its_time_is_over_or_the_service_stops(scene: Scene) -> None:
    assert not (await scene.converged(0)).converged
    waiting = asyncio.create_task(scene.converged(0, 60))
    await settle()
    scene.service.stop()
    with pytest.raises(Unavailable, match="stopping"):
        await waiting
