"""The feed: the lease table as a client keeps it, across restarts, outages and nonsense of the lease service."""

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import LostRace, NotFound, Unavailable
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Upserted
from flannelette.services.runtime.lease import feed as module
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.lease.wire import lease_to_proto, step_to_proto
from flannelette.services.runtime.rpc.server import Server, bound
from tests.examples.leases import NETWORK, SMALL, by_name, make_lease, make_request
from tests.waiting import equals, eventually, has

NAME = "flannelette.lease.v1.LeaseService"
A, B, C = make_lease(1), make_lease(2), make_lease(3)
A2 = make_lease(1, version=2)


class Script:
    """A lease service that plays one list of messages per stream, and keeps the last stream open."""

    def __init__(self, *streams: Sequence[Step | pb.WatchLeasesResponse]) -> None:
        self.streams = list(streams)
        self.requests: list[pb.WatchLeasesRequest] = []
        self.fault: Exception | None = None

    def add_to_server(self, server: grpc.aio.Server) -> None:
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "WatchLeases": grpc.unary_stream_rpc_method_handler(
                self.watch, pb.WatchLeasesRequest.FromString, pb.WatchLeasesResponse.SerializeToString
            ),
            "AcquireLease": grpc.unary_unary_rpc_method_handler(
                self.acquire, pb.AcquireLeaseRequest.FromString, pb.AcquireLeaseResponse.SerializeToString
            ),
            "RenewLease": grpc.unary_unary_rpc_method_handler(
                self.renew, pb.RenewLeaseRequest.FromString, pb.RenewLeaseResponse.SerializeToString
            ),
        }
        server.add_registered_method_handlers(NAME, handlers)

    async def watch(self, request: pb.WatchLeasesRequest, context: Any) -> AsyncIterator[pb.WatchLeasesResponse]:
        self.requests.append(request)
        for step in self.streams.pop(0):
            yield step_to_proto(step) if isinstance(step, Step) else step
        if self.streams:
            raise Unavailable("the lease service is stopping")
        await asyncio.Event().wait()

    async def acquire(self, request: pb.AcquireLeaseRequest, context: Any) -> pb.AcquireLeaseResponse:
        if self.fault is not None:
            raise self.fault
        return pb.AcquireLeaseResponse(lease=lease_to_proto(A))

    async def renew(self, request: pb.RenewLeaseRequest, context: Any) -> pb.RenewLeaseResponse:
        if self.fault is not None:
            raise self.fault
        assert (request.node, request.name) == ("node1", A.name)
        return pb.RenewLeaseResponse(lease=lease_to_proto(A2))


@asynccontextmanager
async def serving(script: Script, directory: Path) -> AsyncIterator[str]:
    server, address = Server({NAME: script.add_to_server}), f"unix:{directory}/lease.sock"
    with bound(server.grpc, address):
        await server.start()
        yield address
        await server.stop()


@asynccontextmanager
async def following(address: str) -> AsyncIterator[tuple[Feed, list[frozenset[str]]]]:
    """A running feed, and the notices that it gave."""
    notices: list[frozenset[str]] = []
    connection = LeaseConnection(address, "node1")
    feed = Feed(connection, pb.VIEW_ALL, notices.append)
    task = asyncio.create_task(feed.run())
    try:
        yield feed, notices
    finally:
        task.cancel()
        await asyncio.wait([task])
        await connection.close()
        assert task.cancelled(), "nothing ends a feed"


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHORTEST_PAUSE", 0.001)
    monkeypatch.setattr(module, "_LONGEST_PAUSE", 0.01)


def snapshot(*leases: Any, cursor: str = "e:1", network: Any = NETWORK) -> Step:
    return Step(reset=True, changes=tuple(map(Upserted, leases)), network=network, synced=True, cursor=cursor)


async def test_it_folds_what_comes_and_names_what_was_touched(tmp_path: Path) -> None:
    script = Script([snapshot(A, B), Step(changes=(Upserted(A2), Removed(B.name)), synced=True, cursor="e:2")])
    async with serving(script, tmp_path) as address, following(address) as (feed, notices):
        await eventually(lambda: feed.table.cursor, equals("e:2"))
        assert feed.table.leases == by_name(A2)
        assert (feed.connected, feed.error) == (True, "")
        assert notices == [{A.name, B.name}, {A.name, B.name}]
        assert script.requests == [pb.WatchLeasesRequest(node="node1", view=pb.VIEW_ALL)]


async def test_it_comes_back_with_its_cursor(tmp_path: Path) -> None:
    script = Script([snapshot(A)], [Step(changes=(Upserted(B),), synced=True, cursor="e:2")], [])
    async with serving(script, tmp_path) as address, following(address) as (feed, _):
        await eventually(lambda: script.requests, has(3))
        assert [request.cursor for request in script.requests] == ["", "e:1", "e:2"]
        assert feed.table.leases == by_name(A, B)


async def test_the_last_table_stays_in_force_while_the_service_is_away(tmp_path: Path) -> None:
    script = Script([snapshot(A)], [])
    async with serving(script, tmp_path) as address:
        manager = following(address)
        feed, notices = await manager.__aenter__()
        await eventually(lambda: script.requests, has(2))
    await eventually(lambda: feed, lambda seen: not seen.connected)
    assert feed.table.leases == by_name(A)
    assert "lease.sock" in feed.error
    assert notices[-1] == frozenset()
    async with serving(Script([snapshot(A, B, cursor="f:1")]), tmp_path):
        await eventually(lambda: feed.table.leases, equals(by_name(A, B)))
        assert feed.connected
    await manager.__aexit__(None, None, None)


async def test_what_is_told_of_a_lost_lease_is_told_once_also_when_the_service_goes_away(tmp_path: Path) -> None:
    script = Script([snapshot(A), Step(lost=A.name)], [])
    async with serving(script, tmp_path) as address:
        connection = LeaseConnection(address, "node1")
        losses: list[str] = []
        feed = Feed(connection, pb.VIEW_ALL, lambda _: losses.append(feed.table.lost))
        task = asyncio.create_task(feed.run())
        await eventually(lambda: script.requests, has(2))
        task.cancel()
        await asyncio.wait([task])
        await connection.close()
    assert [loss for loss in losses if loss] == [A.name]


async def test_a_service_that_starts_later_is_followed(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/lease.sock"
    script = Script([Step(reset=True, network=NETWORK, changes=(Upserted(A),), synced=True, cursor="1")])
    async with following(address) as (feed, _):
        await eventually(lambda: feed.error, lambda error: error.startswith(f"no answer on {address}"))
        async with serving(script, tmp_path):
            await eventually(lambda: feed.table, lambda table: table.synced)
            assert len(script.requests) == 1


@pytest.mark.parametrize("left", ["nothing", "a socket", "a file"])
async def test_it_is_plain_that_nobody_is_there_if_nobody_listens(tmp_path: Path, left: str) -> None:
    path = tmp_path / "lease.sock"
    with socket.socket(socket.AF_UNIX) as killed:
        if left == "a socket":
            killed.bind(str(path))
        elif left == "a file":
            path.write_text("")
    connection = LeaseConnection(f"unix:{path}", "node1")
    assert (
        connection.absent_reason
        == f"no answer on unix:{path}: is flannelette-lease running, and is its socket accessible?"
    )
    await connection.close()


async def test_where_somebody_may_be_only_a_call_tells(tmp_path: Path) -> None:
    async with serving(Script(), tmp_path) as address:
        for possible in (address, "127.0.0.1:1", f"unix:{tmp_path}/{'a' * 200}"):
            connection = LeaseConnection(possible, "node1")
            assert connection.absent_reason == ""
            await connection.close()


async def test_a_reset_removes_nothing_before_it_is_synced(tmp_path: Path) -> None:
    script = Script(
        [snapshot(A, B)],
        [Step(reset=True, changes=(Upserted(C),), network=NETWORK)],
        [
            Step(reset=True, changes=(Upserted(A2),), network=NETWORK),
            Step(changes=(Upserted(C),), synced=True, cursor="f:9"),
        ],
    )
    async with serving(script, tmp_path) as address, following(address) as (feed, notices):
        await eventually(lambda: feed.table.cursor, equals("f:9"))
        assert feed.table.leases == by_name(A2, C)
        assert [set(names) for names in notices if names] == [{A.name, B.name}, {C.name}, {A.name}, {B.name}]
        assert [request.cursor for request in script.requests] == ["", "e:1", ""]


async def test_before_the_service_has_a_table_its_trouble_is_known(tmp_path: Path) -> None:
    away = StoreStatus("etcd", False, "connection refused")
    script = Script([Step(store=away), Step(network_error="no such key")])
    async with serving(script, tmp_path) as address, following(address) as (feed, _):
        await eventually(lambda: feed.table.network_error)
        assert feed.connected
        assert (feed.table.store, feed.table.network_error, feed.table.synced) == (away, "no such key", False)


async def test_a_lease_that_cannot_be_read_is_left_out_and_the_others_count(tmp_path: Path) -> None:
    message = step_to_proto(snapshot(A, B))
    message.changes[0].upserted.subnets[0].cidr = "from the future"
    script = Script([message])
    async with serving(script, tmp_path) as address, following(address) as (feed, _):
        await eventually(lambda: feed.table, lambda table: table.synced)
        assert feed.table.leases == by_name(B)


async def test_a_network_that_cannot_be_read_is_an_error_and_the_last_one_stays(tmp_path: Path) -> None:
    message = step_to_proto(Step(changes=(Upserted(B),), network=SMALL, synced=True, cursor="e:2"))
    message.network.json = "{"
    script = Script([snapshot(A), message])
    async with serving(script, tmp_path) as address, following(address) as (feed, _):
        await eventually(lambda: feed.table.cursor, equals("e:2"))
        assert feed.table.network == NETWORK
        assert "cannot be read" in feed.table.network_error
        assert feed.table.leases == by_name(A, B)


async def test_the_calls_of_the_holder_raise_our_errors(tmp_path: Path) -> None:
    script = Script()
    async with serving(script, tmp_path) as address:
        connection = LeaseConnection(address, "node1")
        assert await connection.acquire(make_request("node1", "172.16.0.1")) == A
        assert await connection.renew(A.name) == A2
        script.fault = LostRace("again")
        with pytest.raises(LostRace, match="again"):
            await connection.acquire(make_request("node1", "172.16.0.1"))
        script.fault = NotFound("gone")
        with pytest.raises(NotFound, match="gone"):
            await connection.renew(A.name)
        await connection.close()


async def test_a_call_while_the_service_is_away_is_unavailable(tmp_path: Path) -> None:
    connection = LeaseConnection(f"unix:{tmp_path}/nobody.sock", "node1")
    with pytest.raises(Unavailable):
        await connection.renew("x")
    await connection.close()
