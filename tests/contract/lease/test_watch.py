"""WatchLeases over a real server on a unix socket."""

import asyncio
from itertools import pairwise
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Table, Upserted
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.lease.wire import step_from_proto
from tests.examples.leases import NETWORK, by_name, make_lease
from tests.patience import PATIENCE
from tests.services.lease import FakeStore, Running, next_step, serving
from tests.waiting import contains, equals, eventually, has

A, B = make_lease(1), make_lease(2)


async def test_a_snapshot_and_then_every_change(tmp_path: Path) -> None:
    store = FakeStore(A)
    async with serving(store, tmp_path) as running:
        call = running.stub.WatchLeases(pb.WatchLeasesRequest())
        first = await next_step(call)
        assert (first.reset, first.changes, first.network, first.synced) == (True, (Upserted(A),), NETWORK, True)
        store.tells(Upserted(B), Removed(A.name))
        second = await next_step(call)
        assert (second.changes, second.synced) == ((Upserted(B), Removed(A.name)), True)
        store.events.put_nowait(StoreStatus("fake", False, "cable cut"))
        assert (await next_step(call)).store == StoreStatus("fake", False, "cable cut")


async def test_the_streams_end_with_unavailable_when_the_process_stops(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        calls = [
            running.stub.WatchLeases(pb.WatchLeasesRequest(node="node1", view=view))
            for view in (pb.VIEW_ALL, pb.VIEW_OWN)
        ]
        for call in calls:
            while not (await next_step(call)).synced:
                pass
        running.broker.stop()
        running.process.stopping.set()
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert "reconnect with the last cursor" in (caught.value.details() or "")


async def test_a_watcher_that_leaves_is_forgotten(tmp_path: Path) -> None:
    async with serving(FakeStore(A), tmp_path) as running:
        calls = [
            running.stub.WatchLeases(pb.WatchLeasesRequest(node="node1", view=view))
            for view in (pb.VIEW_ALL, pb.VIEW_OWN)
        ]
        for call in calls:
            await call.read()
        await eventually(lambda: running.broker.watchers, equals(2))
        calls[0].cancel()
        await eventually(lambda: running.broker.watchers, equals(1))
        await running.channel.close()
        await eventually(lambda: running.broker.watchers, equals(0))


@pytest.mark.parametrize(
    ("node", "asked", "view", "code"),
    [
        ("", "", pb.VIEW_OWN, grpc.StatusCode.INVALID_ARGUMENT),
        ("a", "b", pb.VIEW_OWN, grpc.StatusCode.PERMISSION_DENIED),
        ("a", "b", pb.VIEW_ALL, grpc.StatusCode.PERMISSION_DENIED),
        ("", "no/name", pb.VIEW_ALL, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_identity_is_checked(
    tmp_path: Path, node: str, asked: str, view: "pb.View.ValueType", code: grpc.StatusCode
) -> None:
    async with serving(FakeStore(), tmp_path, node=node) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.stub.WatchLeases(pb.WatchLeasesRequest(node=asked, view=view)).read()
        assert caught.value.code() is code


async def test_an_empty_node_means_the_services_own(tmp_path: Path) -> None:
    async with serving(FakeStore(A, B), tmp_path, node="node2") as running:
        step = await next_step(running.stub.WatchLeases(pb.WatchLeasesRequest(view=pb.VIEW_OWN)))
        assert step.changes == (Upserted(B),)


async def test_ten_thousand_leases_arrive_in_messages_of_at_most_500(tmp_path: Path) -> None:
    leases = [make_lease(number) for number in range(10_000)]
    async with (
        serving(FakeStore(*leases), tmp_path) as running,
        grpc.aio.insecure_channel(running.address) as channel,
    ):
        call = type(running.stub)(channel).WatchLeases(pb.WatchLeasesRequest())
        sizes, table = [], Table()
        while not table.synced:
            step = await next_step(call)
            sizes.append(len(step.changes))
            table.fold(step)
        assert sizes == [500] * 20
        assert table.leases == by_name(*leases)
        call.cancel()


async def test_a_feed_that_comes_back_gets_only_what_it_missed(tmp_path: Path) -> None:
    store = FakeStore(A)
    async with serving(store, tmp_path) as running:
        touched: list[frozenset[str]] = []
        connection = LeaseConnection(running.address, "node1")
        feed = Feed(connection, pb.VIEW_ALL, touched.append)
        following = asyncio.create_task(feed.run())
        await eventually(lambda: feed.table, lambda table: table.synced)
        following.cancel()
        await eventually(lambda: running.broker.watchers, equals(0))
        store.tells(Upserted(B))
        touched.clear()
        following = asyncio.create_task(feed.run())
        await eventually(lambda: feed.table.leases, contains(B.name))
        assert [names for names in touched if names] == [{B.name}]
        following.cancel()
        await connection.close()


async def test_five_hundred_watchers_all_get_one_change_in_order(tmp_path: Path) -> None:
    store = FakeStore(A)

    async def watch(running: Running, seen: list[pb.WatchLeasesResponse]) -> None:
        async for message in running.stub.WatchLeases(pb.WatchLeasesRequest()):
            seen.append(message)
            if message.changes[-1].upserted.name == B.name:
                return

    async with serving(store, tmp_path) as running:
        seen: list[list[pb.WatchLeasesResponse]] = [[] for _ in range(500)]
        async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group:
            for messages in seen:
                group.create_task(watch(running, messages))
            await eventually(lambda: running.broker.watchers, equals(500))
            store.tells(Upserted(B))
        for messages in seen:
            cursors = [int(message.cursor.partition(":")[2]) for message in messages]
            assert all(before < after for before, after in pairwise(cursors))
            table = Table()
            for message in messages:
                table.fold(step_from_proto(message))
            assert table.leases == by_name(A, B)


async def test_a_watcher_that_does_not_read_holds_up_nobody_and_catches_up(tmp_path: Path) -> None:
    store = FakeStore(*(make_lease(number) for number in range(3000)))
    async with serving(store, tmp_path, most_entries=10) as running:
        slow, late = running.stub.WatchLeases(pb.WatchLeasesRequest()), Table()
        late.fold(await next_step(slow))
        quick, table = running.stub.WatchLeases(pb.WatchLeasesRequest()), Table()
        newest = make_lease(1)
        for version in range(1, 300):
            newest = make_lease(1, version=version)
            store.tells(Upserted(newest))
        async with asyncio.timeout(PATIENCE):
            while table.leases.get(newest.name) != newest or not table.synced:
                table.fold(await next_step(quick))
            while late.leases.get(newest.name) != newest or late.cursor != table.cursor:
                late.fold(await next_step(slow))
        assert late.leases == table.leases
        slow.cancel()
        quick.cancel()


async def test_a_dataplanes_stream_makes_its_node_present_and_no_other_stream_does(tmp_path: Path) -> None:
    async with serving(FakeStore(), tmp_path) as running:
        connected_nodes = running.broker.connected_nodes
        others = [
            running.stub.WatchLeases(pb.WatchLeasesRequest(node="node2", view=pb.VIEW_OWN)),  # masq
            running.stub.WatchLeases(pb.WatchLeasesRequest(view=pb.VIEW_ALL)),  # flannelette watch
        ]
        dataplane = running.stub.WatchLeases(pb.WatchLeasesRequest(node="node1", view=pb.VIEW_ALL))
        for call in (*others, dataplane):
            await next_step(call)
        assert set(connected_nodes.nodes) == {"node1"}
        dataplane.cancel()
        await asyncio.wait_for(connected_nodes.changed_since(1), PATIENCE)
        assert not connected_nodes.nodes


async def test_on_one_nodes_service_only_who_names_the_node_is_its_dataplane(tmp_path: Path) -> None:
    async with serving(FakeStore(), tmp_path, node="node1") as running:
        looking = running.stub.WatchLeases(pb.WatchLeasesRequest(view=pb.VIEW_ALL))
        await next_step(looking)
        assert not running.broker.connected_nodes.nodes
        dataplane = running.stub.WatchLeases(pb.WatchLeasesRequest(node="node1", view=pb.VIEW_ALL))
        await next_step(dataplane)
        assert set(running.broker.connected_nodes.nodes) == {"node1"}


async def test_a_node_is_told_that_the_store_has_lost_its_lease_which_the_guard_keeps(tmp_path: Path) -> None:
    leases = [make_lease(number) for number in range(1, 21)]
    store = FakeStore(*leases)
    async with serving(store, tmp_path, guard_seconds=600) as running:
        calls = [
            running.stub.WatchLeases(pb.WatchLeasesRequest(node=node, view=pb.VIEW_ALL))
            for node in ("node1", "node2")
        ]
        tables = [Table(), Table()]
        for call, table in zip(calls, tables, strict=True):
            while not table.synced:
                table.fold(await next_step(call))
        store.tells(*(Removed(lease.name) for lease in leases))
        for number in (1, 2):
            told = await next_step(calls[number - 1])
            assert told == Step(lost=make_lease(number).name)
        store.tells(Upserted(make_lease(1)))
        await eventually(lambda: running.gate.held, has(19))
        store.tells(Upserted(make_lease(99)))
        for call in calls:
            assert (await next_step(call)).changes == (Upserted(make_lease(99)),), "it is told once"


async def test_a_feed_that_is_told_of_a_lost_lease_keeps_its_table(tmp_path: Path) -> None:
    leases = [make_lease(number) for number in range(1, 21)]
    store = FakeStore(*leases)
    async with serving(store, tmp_path, guard_seconds=600) as running:
        heard: list[str] = []
        connection = LeaseConnection(running.address, "node3")
        feed = Feed(connection, pb.VIEW_ALL, lambda _: heard.append(feed.table.lost))
        task = asyncio.create_task(feed.run())
        await eventually(lambda: feed.table, lambda table: table.synced)
        store.tells(*(Removed(lease.name) for lease in leases))
        await eventually(lambda: heard, contains(leases[2].name))
        assert feed.table.leases == by_name(*leases)
        task.cancel()
        await asyncio.wait([task])
        await connection.close()
