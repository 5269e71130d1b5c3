"""A lease service whose store is another lease service: real processes, in tiers of three."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.examples.leases import DUAL_JSON, SMALL_JSON, make_request
from tests.patience import PATIENCE
from tests.services.lease import stub_of
from tests.services.tiers import Tiers, acquired, feed_of, is_connected
from tests.waiting import contains, equals, eventually, has


@pytest.fixture
def tiers(tmp_path: Path) -> Iterator[Tiers]:
    made = Tiers(tmp_path)
    made.config.write_text(SMALL_JSON)
    made.start_top()
    made.add_relay()
    made.add_relay()
    yield made
    for service in made.services:
        service.__exit__(None, None, None)


async def test_a_lease_taken_below_is_in_every_tier_and_every_call_goes_up(tiers: Tiers) -> None:
    async with feed_of(tiers.bottom) as feed, stub_of(tiers.bottom.address) as stub:
        await eventually(lambda: feed, is_connected)
        assert feed.table.store is not None
        assert feed.table.store.kind == "relay"
        lease = await acquired(tiers.bottom, make_request("a", "172.16.0.1"))
        await eventually(lambda: feed.table.leases, contains(lease.name))
        for service in tiers.services:
            async with stub_of(service.address) as each:
                listed = await each.ListLeases(pb.ListLeasesRequest(node="a"))
                assert [entry.name for entry in listed.leases] == [lease.name]
        renewed = await stub.RenewLease(pb.RenewLeaseRequest(node="a", name=lease.name))
        assert renewed.lease.name == lease.name
        for call, code, words in (
            (stub.RenewLease(pb.RenewLeaseRequest(node="b", name=lease.name)), grpc.StatusCode.NOT_FOUND, "b"),
            (
                stub.AcquireLease(request_to_proto(make_request("b", "172.16.0.1"))),
                grpc.StatusCode.FAILED_PRECONDITION,
                "172.16.0.1",
            ),
        ):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call
            assert (caught.value.code(), words in (caught.value.details() or "")) == (code, True)
        await stub.ReleaseLease(pb.ReleaseLeaseRequest(node="a", name=lease.name))
        await eventually(lambda: feed.table.leases, has(0))


async def test_a_new_start_above_loses_nothing_invents_nothing_and_is_told_below(tiers: Tiers) -> None:
    async with feed_of(tiers.bottom) as feed:
        await eventually(lambda: feed, is_connected)
        kept, gone = [
            await acquired(tiers.bottom, make_request(node, f"172.16.0.{n}")) for n, node in ((1, "a"), (2, "b"))
        ]
        await eventually(lambda: feed.table.leases.keys(), equals({kept.name, gone.name}))
        tiers.top.kill()
        await eventually(lambda: feed, lambda seen: not is_connected(seen))
        assert feed.table.store is not None
        assert str(tiers.top.directory) in feed.table.store.error
        assert feed.table.leases.keys() == {kept.name, gone.name}
        async with stub_of(tiers.bottom.address) as stub:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.AcquireLease(request_to_proto(make_request("c", "172.16.0.3")))
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert str(tiers.top.directory) in (caught.value.details() or "")
        tiers.start_top()
        await eventually(lambda: feed, is_connected)
        assert feed.table.leases.keys() == {kept.name, gone.name}
        async with stub_of(tiers.top.address) as above:
            await above.ReleaseLease(pb.ReleaseLeaseRequest(node="b", name=gone.name))
        new = await acquired(tiers.top, make_request("c", "172.16.0.3"))
        await eventually(lambda: feed.table.leases.keys(), equals({kept.name, new.name}))


async def test_a_configuration_that_breaks_or_changes_above_does_so_below(tiers: Tiers) -> None:
    async with feed_of(tiers.bottom) as feed:
        await eventually(lambda: feed, is_connected)
        tiers.config.write_text("{broken")
        await eventually(lambda: feed.table.network_error, contains("JSON"))
        assert feed.table.network is not None
        tiers.config.write_text(DUAL_JSON)
        await eventually(
            lambda: feed.table.network, lambda network: network is not None and network.source == DUAL_JSON
        )
        assert feed.table.network_error == ""


async def test_what_a_node_behind_two_relays_reports_is_known_at_the_top_also_after_a_new_start(tiers: Tiers) -> None:
    async def converged() -> list[str]:
        async with stub_of(tiers.top.address) as above:
            return list((await above.GetConvergence(pb.GetConvergenceRequest())).nodes_done)

    async def until_done(nodes: list[str]) -> None:
        await eventually(converged, equals(nodes))

    async with feed_of(tiers.bottom, "a") as feed, stub_of(tiers.bottom.address) as stub:
        await eventually(lambda: feed, is_connected)
        lease = await acquired(tiers.bottom, make_request("a", "172.16.0.1"))
        await eventually(lambda: feed.table.leases, contains(lease.name))
        await stub.ReportProgress(pb.ReportProgressRequest(node="a", cursor=feed.table.cursor))
        await until_done(["a"])
        tiers.top.kill()
        await eventually(lambda: feed, lambda seen: not is_connected(seen))
        tiers.start_top()
        await eventually(lambda: feed, is_connected)
        await stub.ReportProgress(pb.ReportProgressRequest(node="a", cursor=feed.table.cursor))
        await until_done(["a"])
    await until_done([])


async def test_a_node_behind_relays_is_asked_for_as_few_reports_as_the_top_can_take(tiers: Tiers) -> None:
    many = 200
    async with (
        feed_of(tiers.bottom, "a") as feed,
        stub_of(tiers.top.address) as top,
        stub_of(tiers.bottom.address) as stub,
    ):
        await eventually(lambda: feed, is_connected)
        streams = [top.WatchLeases(pb.WatchLeasesRequest(node=f"n{n}", view=pb.VIEW_ALL)) for n in range(many)]
        for stream in streams:
            await stream.read()
        said = await stub.ReportProgress(pb.ReportProgressRequest(node="a", cursor=feed.table.cursor))
        assert said.pause.ToTimedelta().total_seconds() >= many / 1000
        for stream in streams:
            stream.cancel()


async def test_more_nodes_than_a_connection_has_calls_keep_no_call_from_the_top(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path)
    tiers.config.write_text(SMALL_JSON)

    async def follow(stub: lease_pb2_grpc.LeaseServiceStub, node: str) -> None:
        async for _ in stub.WatchLeases(pb.WatchLeasesRequest(node=node, view=pb.VIEW_ALL), wait_for_ready=True):
            pass

    async with AsyncExitStack() as opened:
        tiers.start_top()
        tiers.add_relay()
        for service in tiers.services:
            opened.push(service)
        own = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each, as nodes have
        channels = [
            await opened.enter_async_context(grpc.aio.insecure_channel(tiers.bottom.address, options=own))
            for _ in range(4)
        ]
        stubs = [lease_pb2_grpc.LeaseServiceStub(channel) for channel in channels]
        tasks = [asyncio.create_task(follow(stubs[number % 4], f"n{number}")) for number in range(1_100)]
        for task in tasks:
            opened.callback(task.cancel)
        above = await opened.enter_async_context(stub_of(tiers.top.address))
        below = await opened.enter_async_context(stub_of(tiers.bottom.address))
        asked = pb.GetConvergenceRequest()
        await eventually(lambda: above.GetConvergence(asked), lambda seen: len(seen.nodes_pending) >= len(tasks))
        await below.AcquireLease(request_to_proto(make_request("n1", "172.16.0.1")), timeout=PATIENCE)
