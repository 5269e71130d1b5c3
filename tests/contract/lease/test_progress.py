"""ReportProgress, ListNodes and GetConvergence over a real server, with clients that behave as dataplanes do."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.duration_pb2 import Duration
from prometheus_client import REGISTRY

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.lease import FailedLease, Progress
from flannelette.services.core.leases.table import Upserted
from flannelette.services.runtime.lease import feed
from flannelette.services.runtime.lease.feed import LeaseConnection
from tests.examples.leases import make_lease
from tests.patience import PATIENCE
from tests.services.lease import FakeStore, Running, next_step, serving

A, B = make_lease(1), make_lease(2)
FAILED = pb.FailedLease(name=B.name, reason="route 10.0.2.0/24: Network is unreachable")


class Dataplane:
    """A node's stream, and its reports."""

    def __init__(self, running: Running, node: str, call: Any) -> None:
        self.node = node
        self._stub = running.stub
        self._call = call

    async def follow(self) -> str:
        """The cursor of the next step that has one."""
        while not (cursor := (await next_step(self._call)).cursor):
            pass
        return cursor

    async def report(self, cursor: str, *failed: pb.FailedLease) -> pb.ReportProgressResponse:
        return await self._stub.ReportProgress(
            pb.ReportProgressRequest(node=self.node, cursor=cursor, failed=failed), timeout=PATIENCE
        )

    def leave(self) -> None:
        self._call.cancel()


@asynccontextmanager
async def dataplane(running: Running, node: str) -> AsyncIterator[Dataplane]:
    """Connected, with the first snapshot programmed."""
    call = running.stub.WatchLeases(pb.WatchLeasesRequest(node=node, view=pb.VIEW_ALL))
    found = Dataplane(running, node, call)
    await found.report(await found.follow())
    try:
        yield found
    finally:
        call.cancel()


async def converged(running: Running, cursor: str = "", wait: float = 0) -> pb.GetConvergenceResponse:
    request = pb.GetConvergenceRequest(cursor=cursor)
    if wait:
        request.wait.CopyFrom(Duration(seconds=int(wait)))
    return await running.stub.GetConvergence(request, timeout=PATIENCE)


async def nodes(running: Running) -> dict[str, pb.Node]:
    response = await running.stub.ListNodes(pb.ListNodesRequest(), timeout=PATIENCE)
    assert [node.name for node in response.nodes] == sorted(node.name for node in response.nodes)
    return {node.name: node for node in response.nodes}


async def test_a_change_has_converged_when_every_connected_node_reports_it(tmp_path: Path) -> None:
    async with (
        serving(FakeStore(A), tmp_path) as running,
        dataplane(running, "node1") as one,
        dataplane(running, "node2") as two,
    ):
        running.tells(Upserted(B))
        cursor = await one.follow()
        await one.report(cursor)
        found = await converged(running)
        assert (found.cursor, found.converged) == (cursor, False)
        assert (list(found.nodes_done), list(found.nodes_pending)) == (["node1"], ["node2"])
        await two.report(await two.follow())
        found = await converged(running, cursor)
        assert found.converged
        assert (list(found.nodes_done), list(found.nodes_pending)) == (["node1", "node2"], [])
        assert 0 < found.elapsed.ToTimedelta().total_seconds() < 10
        assert (await converged(running, cursor)).elapsed == found.elapsed, "what it took stays what it took"


async def test_what_is_wrong_with_a_node_is_told_with_its_progress(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running, dataplane(running, "node1") as one:
        running.tells(Upserted(B))
        cursor = await one.follow()
        finding = pb.Finding(check="peer-route", problem="No packets reach h2.", cure="ip rule del", broken=True)
        report = pb.ReportProgressRequest(node="node1", cursor=cursor, findings=[finding] * 9, version="1.2.3")
        answer = await running.stub.ReportProgress(report, timeout=PATIENCE)
        assert abs(answer.time.ToMilliseconds() / 1000 - time.time()) < PATIENCE
        found = (await nodes(running))["node1"]
        assert ([*found.findings], found.version) == ([finding] * 8, "1.2.3")
        await one.report(cursor)
        assert not (await nodes(running))["node1"].findings


async def test_who_reports_learns_how_far_the_clocks_are_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(FakeStore(A), tmp_path) as running, dataplane(running, "node1"):
        connection = LeaseConnection(running.address, "node1")
        try:
            for ahead in (0, 61, -3600, 0):
                monkeypatch.setattr(feed, "time", SimpleNamespace(time=lambda ahead=ahead: time.time() - ahead))
                await connection.report(Progress("node1", "epoch:0"))
                assert connection.clock_ahead == pytest.approx(ahead, abs=30)
        finally:
            await connection.close()


async def test_a_report_says_how_long_ago_it_came_true(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running, dataplane(running, "node1") as one:
        before = time.monotonic()
        running.tells(Upserted(B))
        cursor = await one.follow()
        await asyncio.sleep(0.5)
        report = pb.ReportProgressRequest(node="node1", cursor=cursor, age=Duration(nanos=450_000_000))
        await running.stub.ReportProgress(report)
        found = await converged(running)
        assert found.converged
        assert found.elapsed.ToTimedelta().total_seconds() <= time.monotonic() - before - 0.45


async def test_who_waits_for_convergence_is_answered_by_the_report_that_brings_it(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running, dataplane(running, "node1") as one:
        running.tells(Upserted(B))
        waiting = asyncio.create_task(converged(running, wait=60))
        cursor = await one.follow()
        assert not waiting.done()
        await one.report(cursor)
        assert (await asyncio.wait_for(waiting, PATIENCE)).converged


async def test_a_wait_that_is_over_says_who_is_pending(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running, dataplane(running, "node1"):
        running.tells(Upserted(B))
        found = await converged(running, wait=1)
        assert (found.converged, list(found.nodes_pending)) == (False, ["node1"])
        assert found.elapsed.ToTimedelta().total_seconds() >= 1


async def test_a_node_that_failed_to_program_a_lease_is_shown_with_the_reason(tmp_path: Path) -> None:
    async with serving(FakeStore(A, B), tmp_path) as running, dataplane(running, "node1") as one:
        cursor = running.broker.change_log.cursor
        await one.report(cursor, FAILED)
        found = await converged(running)
        assert (found.converged, list(found.nodes_failed)) == (False, ["node1"])
        assert not found.nodes_done
        assert not found.nodes_pending
        shown = (await nodes(running))["node1"]
        assert (list(shown.failed), shown.failed_count, shown.behind) == ([FAILED], 1, 0)
        await one.report(cursor)
        assert (await converged(running)).converged


async def test_a_node_that_left_is_not_pending_but_not_connected(tmp_path: Path) -> None:
    async with (
        serving(FakeStore(A, B), tmp_path) as running,
        dataplane(running, "node1") as one,
        dataplane(running, "node2") as two,
    ):
        programmed = running.broker.change_log.cursor
        two.leave()
        connected_nodes = running.broker.connected_nodes
        while "node2" in connected_nodes.nodes:
            await asyncio.wait_for(connected_nodes.changed_since(connected_nodes.changes), PATIENCE)
        running.tells(Upserted(make_lease(3)))
        await one.report(await one.follow())
        assert (await converged(running)).converged
        shown = await nodes(running)
        assert [shown[name].connected for name in ("node1", "node2", "node3")] == [True, False, False]
        assert shown["node1"].behind == 0
        assert (shown["node2"].cursor, shown["node2"].HasField("behind")) == (programmed, False)
        assert (shown["node2"].lease, list(shown["node2"].subnets)) == (B.name, ["10.0.2.0/24"])
        assert shown["node2"].HasField("report_time")
        assert not shown["node3"].HasField("report_time")


async def test_a_node_that_is_behind_says_by_how_much(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running, dataplane(running, "node1"):
        for version in range(1, 4):
            running.tells(Upserted(make_lease(1, version=version)))
        assert (await nodes(running))["node1"].behind == 3


async def test_masq_and_who_only_looks_keep_nobody_waiting(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running, dataplane(running, "node1"):
        for request in (
            pb.WatchLeasesRequest(node="node2", view=pb.VIEW_OWN),
            pb.WatchLeasesRequest(view=pb.VIEW_ALL),
            pb.WatchLeasesRequest(node="node3"),
        ):
            await next_step(running.stub.WatchLeases(request))
        found = await converged(running)
        assert (found.converged, list(found.nodes_done)) == (True, ["node1"])


async def test_without_any_dataplane_nothing_has_converged(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        assert not (await converged(running)).converged


async def test_the_service_of_one_node_does_not_claim_to_know_the_others(tmp_path: Path) -> None:
    async with serving(FakeStore(A, B), tmp_path, node="node1") as running, dataplane(running, "node1"):
        shown = await nodes(running)
        assert shown["node1"].connected
        assert not shown["node2"].HasField("connected")
        assert (await converged(running)).converged
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub.ReportProgress(pb.ReportProgressRequest(node="node2", cursor="epoch:0"))
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_a_report_is_told_to_the_store_and_fails_with_it(tmp_path: Path) -> None:
    store = FakeStore(A, B)
    async with serving(store, tmp_path) as running, dataplane(running, "node1") as one:
        await one.report("epoch:0", FAILED)
        assert store.reported == [
            Progress("node1", "epoch:0"),
            Progress("node1", "epoch:0", (FailedLease(FAILED.name, FAILED.reason),), 1),
        ]
        await one.report("another:7")
        assert len(store.reported) == 2, "what says nothing is told to nobody"
        store.fault = Unavailable("the API is away")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await one.report("epoch:0")
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_report_is_answered_with_when_to_report_again(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running, dataplane(running, "node1") as one:
        assert (await one.report("epoch:0")).pause.ToMilliseconds() == 50


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (pb.GetConvergenceRequest(cursor="other:1"), grpc.StatusCode.NOT_FOUND),
        (pb.GetConvergenceRequest(cursor="epoch:77"), grpc.StatusCode.NOT_FOUND),
        (pb.GetConvergenceRequest(wait=Duration(seconds=61)), grpc.StatusCode.INVALID_ARGUMENT),
        (pb.GetConvergenceRequest(wait=Duration(seconds=-1)), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_question_without_an_answer_is_refused(
    tmp_path: Path, request_: pb.GetConvergenceRequest, code: grpc.StatusCode
) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub.GetConvergence(request_)
        assert caught.value.code() is code


async def test_before_the_first_snapshot_nobody_can_say_what_has_converged(tmp_path: Path) -> None:
    async with serving(FakeStore(), tmp_path, snapshot=False) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await converged(running)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert not await nodes(running)


async def test_a_stopping_service_lets_nobody_wait(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        waiting = asyncio.create_task(converged(running, wait=60))
        await asyncio.sleep(0)
        await converged(running)  # asked later, answered at once: the other one waits by now
        assert not waiting.done()
        running.broker.stop()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await asyncio.wait_for(waiting, PATIENCE)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_every_change_is_measured_once(tmp_path: Path) -> None:
    def count() -> float:
        return REGISTRY.get_sample_value("flannelette_convergence_seconds_count") or 0.0

    async with (
        serving(FakeStore(A), tmp_path) as running,
        dataplane(running, "node1") as one,
        dataplane(running, "node2") as two,
    ):
        before = count()
        for version in range(1, 6):
            running.tells(Upserted(make_lease(1, version=version)))
        await one.report("epoch:5")
        assert count() == before
        assert REGISTRY.get_sample_value("flannelette_lease_nodes_behind") == 1
        await two.report("epoch:3")
        await two.report("epoch:5")
        assert count() == before + 5
        assert REGISTRY.get_sample_value("flannelette_lease_nodes_connected") == 2
        assert REGISTRY.get_sample_value("flannelette_lease_nodes_behind") == 0
