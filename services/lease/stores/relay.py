"""The store relay: the table, the leases and the errors of another lease service, handed on; to that service, which
nodes are connected here, and what each one reports.

So tiers of lease services serve many nodes. A relay keeps no leases.
"""

import asyncio
from bisect import bisect_right
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any, Final

import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import FlanneletteError, Unavailable
from flannelette.services.core.family import Network
from flannelette.services.core.ipam import Reclaim, is_another, name_taken
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Progress
from flannelette.services.core.limits import MOST_LEASES, seconds_of, unix_time
from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.stores.store import (
    RELAY,
    LostLease,
    Reclaimed,
    Refusal,
    RefusalKind,
    Snapshot,
    StoreEvent,
    TableEvents,
)
from flannelette.services.lease.watch import ChangeLog
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.lease.feed import ACQUIRE_SECONDS, Feed, LeaseConnection, readable_lease
from flannelette.services.runtime.lease.wire import (
    held_lease,
    lease_from_proto,
    network_from_proto,
    progress_to_proto,
    request_to_proto,
)
from flannelette.services.runtime.rpc.interceptor import error_of, readable

_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class NodeStreams:
    """A follower of Presence. `run` keeps one stream above for each machine of a node that is connected here.

    Each new stream of a node here gets a new one above, since what a node said before does not count any more.
    `keep` opens the one of a node's machine and returns when it has ended, whether it was ever open. `machines` are
    those of a node's open streams, the newest last: there may be two until the lease service above refuses one.
    """

    def __init__(self, keep: Callable[[str, str], Awaitable[bool]], machines: Callable[[str], Sequence[str]]) -> None:
        self._keep = keep
        self._machines = machines
        self._newest: dict[tuple[str, str], int] = {}
        """The machines of nodes that are connected here, each with the number of its newest stream."""
        self._numbers: Final = count()
        self._news = asyncio.Event()

    def on_connect(self, node: str) -> None:
        """See ConnectionListener."""
        self._newest[node, self._machines(node)[-1]] = next(self._numbers)
        self._news.set()

    def on_disconnect(self, node: str) -> None:
        """See ConnectionListener."""
        for key in [key for key in self._newest if key[0] == node]:
            del self._newest[key]
        self._news.set()

    async def run(self) -> None:
        """Keeps a stream above open for each connected node until cancelled."""
        kept: dict[tuple[str, str], tuple[int, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await self._news.wait()
                self._news.clear()
                for key in [key for key, (number, _) in kept.items() if self._newest.get(key) != number]:
                    kept.pop(key)[1].cancel()
                for key, number in self._newest.items():
                    if key not in kept:
                        kept[key] = number, group.create_task(self._keep_open(*key), name=f"{key[0]} above")

    async def _keep_open(self, node: str, machine: str) -> None:
        pauses = Backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE)
        while machine in self._machines(node):
            if await self._keep(node, machine):
                pauses.reset()
            await asyncio.sleep(pauses.next())


_MOST_STREAMS: Final = 512
"""Streams on one connection, half of the calls that a lease service takes on it: the rest is for other calls."""


class Connections:
    """The connections to the lease service above, as many as the streams of the nodes here take."""

    def __init__(self, first: LeaseConnection) -> None:
        self._first = first
        self._streams = {first: 0}

    @contextmanager
    def stream(self) -> Iterator[LeaseConnection]:
        """A connection with room for a stream, which it has until the block ends."""
        connection = next((each for each, streams in self._streams.items() if streams < _MOST_STREAMS), None)
        if connection is None:
            connection = self._first.beside()
            self._streams[connection] = 0
        self._streams[connection] += 1
        try:
            yield connection
        finally:
            self._streams[connection] -= 1

    async def close(self) -> None:
        """Closes the connections, which ends open calls."""
        for each in self._streams:
            await each.close()


_MOST: Final = 20_000
"""Least number of positions that are kept: our own history has as many entries, and older positions nobody
reports."""


class Cursors:
    """Positions of our history, growing, each with the newest cursor above whose changes are all in it."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._cursors: list[str] = []

    def record(self, position: int, cursor: str) -> bool:
        """Records that our table at this position has everything up to that cursor; returns whether that was not
        known.
        """
        if self._cursors and (self._positions[-1], self._cursors[-1]) == (position, cursor):
            return False
        if self._positions and self._positions[-1] == position:
            self._cursors[-1] = cursor
        else:
            self._positions.append(position)
            self._cursors.append(cursor)
        if len(self._positions) > 2 * _MOST:
            del self._positions[:_MOST], self._cursors[:_MOST]
        return True

    def upstream(self, position: int) -> str:
        """The newest cursor above that a node at our position has; empty: not known."""
        index = bisect_right(self._positions, position)
        return self._cursors[index - 1] if index else ""


class ReportForwarder:
    """The last report of each node: handed on at once, and again when there is reason to think it was forgotten.

    `send` is the call to the lease service above; it returns the pause that is asked for there.
    """

    def __init__(self, change_log: ChangeLog, send: Callable[[Progress], Awaitable[float]]) -> None:
        self._change_log = change_log
        self._send = send
        self._cursors = Cursors()
        self._last: dict[str, Progress] = {}
        self._due: set[str] = set()
        self._news = asyncio.Event()

    async def take(self, progress: Progress) -> float:
        """A node's report, with a cursor of ours. Returns the pause until its next one. Raises Unavailable."""
        self._last[progress.node] = progress
        return await self._hand_on(progress)

    async def repeat(self, node: str) -> None:
        """The last report of a node once more, if there is one; best effort."""
        if progress := self._last.get(node):
            with suppress(FlanneletteError):
                await self._hand_on(progress)

    def reached(self, cursor: str) -> None:
        """Records that our table has everything up to this cursor above.

        Where that made no difference to it, as after a new start above, nobody here reports again: `run` does.
        """
        position = self._change_log.last
        if self._cursors.record(position, cursor):
            ours = self._change_log.cursor
            self._due.update(node for node, said in self._last.items() if said.cursor == ours)
            self._news.set()

    async def run(self) -> None:
        """Sends due reports above until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._due:
                await self.repeat(self._due.pop())

    def on_connect(self, node: str) -> None:
        """See ConnectionListener: what it said before its newest stream counts no more."""
        self._last.pop(node, None)

    def on_disconnect(self, node: str) -> None:
        """See ConnectionListener."""
        self._last.pop(node, None)

    async def _hand_on(self, progress: Progress) -> float:
        if not progress.cursor:
            return await self._send(progress)  # nothing is in its kernel, whatever the cursor
        position = self._change_log.number(progress.cursor)
        upstream = "" if position is None else self._cursors.upstream(position)
        return await self._send(replace(progress, cursor=upstream)) if upstream else 0.0


_QUARANTINE_SECONDS: Final = 15.0
"""Seconds between two calls of ListQuarantine above, which no stream covers."""
_CALL_SECONDS: Final = 15.0
_AWAY: Final = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED})


class RelayStore:
    """A Store (services/lease/stores/store.py) in another lease service, which may be a relay itself.

    * One stream of the whole table from above, however many watchers there are below.
    * Whose a lease is, the lease service above decides: nothing here looks for it.
    * A write is answered when the lease service above has answered it; its errors come back as they are.
    * A node that is connected here counts as connected above, and its reports are handed on.

    `change_log` is that of the table below: nodes report its positions. `lose` tells the nodes below what the store
    above has lost.
    """

    kind = RELAY

    def __init__(
        self,
        connection: LeaseConnection,
        change_log: ChangeLog,
        connected_nodes: ConnectedNodes,
        lose: Callable[[Mapping[str, LostLease]], None] = lambda lost: None,
        most: int = MOST_LEASES,
    ) -> None:
        self._connection = connection
        self._connections = Connections(connection)
        self._lose = lose
        self._most = most
        self._lost: Mapping[str, LostLease] = {}
        self._reports = ReportForwarder(change_log, self._report_above)
        self._connected_nodes = connected_nodes
        self._admitted: dict[str, str] = {}
        """Machines that have their node's name, by node: those whose stream to the upstream lease service is open."""
        self._node_streams = NodeStreams(
            self._keep_connected, lambda node: [stream.machine for stream in connected_nodes.of(node)]
        )
        connected_nodes.judge = self._stranger
        connected_nodes.subscribe(self._reports)
        connected_nodes.subscribe(self._node_streams)

    async def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store."""
        events, changed = TableEvents(self._connection.address), asyncio.Event()

        def notice(touched: frozenset[str]) -> None:
            events.touched |= touched
            changed.set()

        feed = Feed(self._connection, pb.VIEW_ALL, notice, relayed=True, most=self._most)
        jobs = feed.run(), self._poll_quarantine(feed, events, changed)
        tasks = [asyncio.create_task(job) for job in jobs]
        for task in tasks:
            task.add_done_callback(lambda _: changed.set())
        try:
            while True:
                await changed.wait()
                changed.clear()
                for task in tasks:
                    if task.done():
                        task.result()  # they never end but by a defect, which ends the process
                cursor = feed.table.cursor
                for event in events.events(feed.table, feed.connected, feed.error):
                    yield event
                if cursor:  # the pipeline has taken all of it by now
                    self._reports.reached(cursor)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def tell_of_nodes(self) -> None:
        """A job for as long as the store is in use: makes the nodes here known to the lease service above."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._node_streams.run())
            group.create_task(self._reports.run())

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store; for any node."""
        return held_lease(await self._call("AcquireLease", request_to_proto(request), ACQUIRE_SECONDS))

    async def renew(self, node: str, name: str, machine: str = "") -> Lease:
        """See Store; for any node."""
        request = pb.RenewLeaseRequest(node=node, name=name, machine=machine)
        return held_lease(await self._call("RenewLease", request))

    async def release(self, node: str, name: str) -> None:
        """See Store; for any node."""
        await self._call("ReleaseLease", pb.ReleaseLeaseRequest(node=node, name=name))

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """Reserves subnets above. Over TLS this needs the certificate of an administrator, which a relay has not."""
        request = pb.ReserveSubnetRequest(cidrs=map(str, cidrs), node=node)
        return lease_from_proto((await self._call("ReserveSubnet", request)).lease)

    async def unreserve(self, name: str) -> None:
        """Ends a reservation above, under the condition of `reserve`."""
        await self._call("ReleaseSubnet", pb.ReleaseSubnetRequest(name=name))

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """Takes back leases above, under the condition of `reserve`."""
        request = pb.ReclaimLeasesRequest(names=wanted.names, node=wanted.node, dry_run=dry_run)
        if wanted.unseen_seconds is not None:
            request.unseen_for.FromNanoseconds(int(wanted.unseen_seconds * 1e9))
        return tuple(map(_reclaimed_from_proto, (await self._call("ReclaimLeases", request)).reclaimed))

    async def relist(self) -> Snapshot:
        """See Store. Unavailable also when the store above is away: then nobody knows what is there."""
        response = await self._call("ListLeases", pb.ListLeasesRequest())
        if not response.store.connected:
            raise Unavailable(f"{self._connection.address} has lost its {response.store.kind} store")
        return Snapshot(
            {lease.name: lease for lease in map(readable_lease, response.leases) if lease is not None},
            network_from_proto(response.network) if response.HasField("network") else None,
            response.network_error,
            await self._quarantined(),
        )

    async def expiry_times(self) -> dict[str, float]:
        """See KnowsExpiry: those that the lease service above knows or asks for."""
        response = await self._call("ListLeases", pb.ListLeasesRequest(expiry=True))
        timed = (each for each in response.leases if each.HasField("expire_time"))
        return {each.name: unix_time(each.expire_time, "expire_time") for each in timed}

    async def report(self, progress: Progress) -> float:
        """See Store. The lease service above takes the reports of all relays below it."""
        return await self._reports.take(progress)

    async def discard(self, key: str, seen: Lease | str) -> None:
        """See Store. The lease service above compares with what it has seen itself."""
        await self._call("DeleteQuarantined", pb.DeleteQuarantinedRequest(key=key))

    async def close(self) -> None:
        """See Store."""
        await self._connections.close()

    async def _report_above(self, progress: Progress) -> float:
        """Reports progress above, with a cursor of the lease service there; returns the seconds to wait before the
        next report.
        """
        return seconds_of((await self._call("ReportProgress", progress_to_proto(progress))).pause, "pause")

    async def _quarantined(self) -> dict[str, Refusal]:
        """Keys that are quarantined above, and why."""
        response = await self._call("ListQuarantine", pb.ListQuarantineRequest())
        return {entry.key: _refusal_from_proto(entry) for entry in response.keys}

    async def _poll_quarantine(self, feed: Feed, events: TableEvents, changed: asyncio.Event) -> None:
        while True:
            if feed.connected:
                with suppress(FlanneletteError):
                    refused = await self._quarantined()
                    if refused != events.refused:
                        events.refused = refused
                        changed.set()
            await asyncio.sleep(_QUARANTINE_SECONDS if feed.connected else 1)

    def _stranger(self, node: str, machine: str) -> str:
        """Why a machine is refused: the lease service above has admitted another of its name; empty: it is not."""
        admitted = self._admitted.get(node, "")
        return name_taken(node) if is_another(machine, admitted) else ""

    async def _keep_connected(self, node: str, machine: str) -> bool:
        """See NodeStreams. Where the lease service above refuses the machine its name, its stream here ends."""
        request = pb.WatchLeasesRequest(node=node, view=pb.VIEW_OWN, relayed=True, machine=machine)
        is_open = False
        with self._connections.stream() as connection:
            try:
                async for message in connection.stub.WatchLeases(request):
                    if readable(message).lost:
                        self._hand_on(node, LostLease(message.lost, asyncio.get_running_loop().time()))
                    if not is_open:
                        is_open, self._admitted[node] = True, machine
                        await self._reports.repeat(node)
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.FAILED_PRECONDITION:
                    self._connected_nodes.refuse(node, machine, error.details() or "another machine has this name")
                elif error.code() in _AWAY:
                    await connection.renew_certificate()
            except Unavailable:
                pass  # opened again; the stream of the table says what is wrong
            finally:
                if self._admitted.get(node) == machine:
                    del self._admitted[node]
                self._hand_on(node, None)
        return is_open

    def _hand_on(self, node: str, lost: LostLease | None) -> None:
        """The store above has lost a lease of a node here; None: not that it is known."""
        others = {other: what for other, what in self._lost.items() if other != node}
        self._lost = {**others, node: lost} if lost else others
        self._lose(self._lost)

    async def _call(self, method: str, request: Any, seconds: float = _CALL_SECONDS) -> Any:
        """Raises the errors that lease.proto names for it, and Unavailable when nobody answers in time."""
        try:
            return readable(await getattr(self._connection.stub, method)(request, timeout=seconds))
        except grpc.aio.AioRpcError as error:
            if error.code() in _AWAY:
                raise Unavailable(await self._connection.lost(error)) from None
            raise error_of(error) from None


def _reclaimed_from_proto(each: pb.ReclaimedLease) -> Reclaimed:
    seen = unix_time(each.last_seen_time, "last_seen_time") if each.HasField("last_seen_time") else None
    return Reclaimed(lease_from_proto(each.lease), seen)


def _refusal_from_proto(entry: pb.QuarantinedKey) -> Refusal:
    """A kind of another release counts as unreadable."""
    is_outside = entry.kind == pb.REFUSAL_KIND_OUTSIDE_NETWORK
    return Refusal(RefusalKind.OUTSIDE_NETWORK if is_outside else RefusalKind.UNREADABLE, entry.reason)
