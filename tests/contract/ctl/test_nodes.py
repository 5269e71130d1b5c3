"""`flannelette nodes` and `flannelette wait` as processes, beside a lease service and beside what a node answers."""

import asyncio
from pathlib import Path

import grpc
import pytest
import yaml

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.table import Upserted
from tests.ctl import nodes as ctl_nodes
from tests.ctl import samples as samples
from tests.ctl.fakes import FakeNode
from tests.ctl.process import run, start
from tests.examples.leases import make_lease
from tests.patience import PATIENCE
from tests.services.lease import FakeStore, Running, next_step, serving
from tests.waiting import eventually

A, B = make_lease(1), make_lease(2)


async def test_nodes_that_are_well_have_exit_code_0_and_others_1(node: FakeNode) -> None:
    ran = await run(node.directory, "nodes")
    assert (ran.code, ran.err) == (0, "")
    assert [line.split()[0] for line in ran.out.splitlines()] == ["NODE", "h1", "h2", "h3"]
    node.lease.replies.by_method["ListNodes"] = ctl_nodes.varied_nodes()
    ran = await run(node.directory, "nodes", "-o", "json")
    assert ran.code == 1
    assert ran.json["nodes"][1]["failed"][0]["reason"] == "Network is unreachable (ENETUNREACH)"
    assert ran.json["nodes"][0]["connected"] is True


async def test_yaml_has_what_json_has(node: FakeNode) -> None:
    for words in (["nodes"], ["status"], ["leases"]):
        ran = await run(node.directory, *words, "-o", "yaml")
        assert (ran.code, ran.err) == (0, "")
        assert yaml.safe_load(ran.out) == (await run(node.directory, *words, "-o", "json")).json
        assert not ran.out.startswith("{")


async def test_without_a_lease_service_here_nodes_says_how_to_name_one(tmp_path: Path) -> None:
    ran = await run(tmp_path, "nodes")
    assert (ran.code, ran.out) == (2, "")
    assert "If the lease service is central, name it: --lease" in ran.err


@pytest.mark.parametrize(
    "words", [[], ["--cursor=e:1", "--ready"], ["--converged", "--timeout=-1"], ["--ready", "--timeout=nan"]]
)
async def test_a_wait_for_nothing_is_wrong_usage(tmp_path: Path, words: list[str]) -> None:
    ran = await run(tmp_path, "wait", *words)
    assert (ran.code, ran.out) == (2, "")
    assert "Error: " in ran.err


async def test_what_has_converged_is_said_at_once(node: FakeNode) -> None:
    ran = await run(node.directory, "wait", "--converged", "--cursor=e1:9")
    assert (ran.code, ran.out, ran.err) == (0, "converged: 3 nodes at e1:9 after 12 ms\n", "")
    assert node.lease.replies.asked[-1][1].cursor == "e1:9"
    ran = await run(node.directory, "wait", "--converged", "-o", "json")
    assert (ran.code, ran.json["converged"]) == (0, True)


async def test_when_the_time_is_over_it_says_who_is_pending(node: FakeNode) -> None:
    node.lease.replies.by_method["GetConvergence"] = ctl_nodes.pending()
    node.lease.replies.by_method["ListNodes"] = ctl_nodes.varied_nodes()
    ran = await run(node.directory, "wait", "--converged", "--timeout=0")
    assert ran.code == 1
    assert ran.out.startswith("not converged at e1:9: 3 nodes pending, 2 nodes with failed leases, 1 node done\n")
    assert [line.split()[0] for line in ran.out.splitlines()[2:]] == ["h1", "h2", "h3", "h5", "h7"]


async def test_a_cursor_that_is_not_known_is_1(node: FakeNode) -> None:
    node.lease.replies.by_method["GetConvergence"] = (grpc.StatusCode.NOT_FOUND, "that was compacted")
    ran = await run(node.directory, "wait", "--converged", "--cursor=x")
    assert (ran.code, ran.err) == (1, "flannelette: that was compacted\n")


async def test_nobody_there_is_2_once_the_time_is_over(tmp_path: Path) -> None:
    ran = await run(tmp_path, "wait", "--converged", "--timeout=0.5")
    assert (ran.code, ran.out) == (2, "")
    first, *_, last = ran.err.splitlines()
    assert first.endswith("waiting for it")
    assert "name it: --lease" in last


async def dataplane(running: Running, node: str) -> str:
    """Connected, with the first snapshot in its kernel; returns the cursor."""
    call = running.stub.WatchLeases(pb.WatchLeasesRequest(node=node, view=pb.VIEW_ALL))
    while not (cursor := (await next_step(call)).cursor):
        pass
    await running.stub.ReportProgress(pb.ReportProgressRequest(node=node, cursor=cursor))
    return cursor


async def test_it_waits_with_one_call_for_the_report_that_brings_it(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        await dataplane(running, "node1")
        running.tells(Upserted(B))
        waiting = await start(tmp_path, "wait", "--converged")
        await eventually(lambda: running.broker.reports.waiting)
        early: int | None = waiting.returncode
        assert early is None
        await running.stub.ReportProgress(pb.ReportProgressRequest(node="node1", cursor="epoch:1"))
        out, err = await asyncio.wait_for(waiting.communicate(), PATIENCE)
        assert (waiting.returncode, err) == (0, b"")
        assert out.startswith(b"converged: 1 node at epoch:1 after ")


async def test_it_waits_for_the_changes_of_when_it_was_asked_and_for_no_later_ones(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        cursor = await dataplane(running, "node1")
        running.tells(Upserted(B))
        ran = await run(tmp_path, "wait", "--converged", f"--cursor={cursor}")
        assert (ran.code, ran.out.split(" after ")[0]) == (0, "converged: 1 node at epoch:0")


async def test_it_goes_on_waiting_across_a_restart_of_the_lease_service(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        await dataplane(running, "node1")
        running.tells(Upserted(B))
        waiting = await start(tmp_path, "wait", "--converged")
        await eventually(lambda: running.broker.reports.waiting)
    async with serving(FakeStore(A, B), tmp_path) as running:
        await dataplane(running, "node1")
        out, err = await asyncio.wait_for(waiting.communicate(), PATIENCE)
        assert (waiting.returncode, out.split(b" after ")[0]) == (0, b"converged: 1 node at epoch:0")
        assert b"waiting for it" in err


async def test_ready_is_what_status_calls_healthy(node: FakeNode) -> None:
    ran = await run(node.directory, "wait", "--ready")
    assert (ran.code, ran.out, ran.err) == (0, "", "")
    status = samples.dataplane_status()
    status.status.ready = False
    status.status.reasons.append("no lease yet")
    node.dataplane.replies.by_method["GetStatus"] = status
    ran = await run(node.directory, "wait", "--ready", "--converged", "--timeout=0.3")
    assert (ran.code, ran.out, ran.err) == (1, "", "flannelette: dataplane: no lease yet\n")
    waiting = await start(node.directory, "wait", "--ready", "--converged")
    node.dataplane.replies.asked.clear()
    await eventually(lambda: node.dataplane.replies.asked, lambda seen: len(seen) > 1)
    node.dataplane.replies.by_method["GetStatus"] = samples.dataplane_status()
    out, _ = await asyncio.wait_for(waiting.communicate(), PATIENCE)
    assert (waiting.returncode, out) == (0, b"converged: 3 nodes at e1:9 after 12 ms\n")
