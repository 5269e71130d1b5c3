"""The store relay: the table, the leases and the errors of another lease service, handed on."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Final

import grpc.aio
from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import FlanneletteError, Unavailable
from services.core.leases.lease import Lease
from services.core.leases.progress import Progress
from services.core.limits import MOST_LEASES
from services.lease.progress.connected import ConnectedNodes
from services.lease.stores.relay.events import KIND, TableEvents
from services.lease.stores.relay.nodes import NodeStreams, ReportForwarder
from services.lease.stores.relay.upstream import Upstream
from services.lease.stores.store import LostLease, StoreEvent
from services.lease.watch.log import ChangeLog
from services.runtime.lease.feed import Feed, LeaseConnection
from services.runtime.rpc.interceptor import readable

_QUARANTINE_SECONDS: Final = 15.0
"""Between two calls of ListQuarantine above, which no stream covers."""


class RelayStore:
    """A Store (services.lease.stores.store) in another lease service, which may be a relay itself.

    * One stream of the whole table from above, however many watchers there are below.
    * Whose a lease is, the lease service above decides: nothing here looks for it.
    * A write is answered when the lease service above has answered it; its errors come back as they are.
    * A node that is connected here counts as connected above, and its reports are handed on.

    `change_log` is that of the table below: nodes report its positions. `lose` tells the nodes below what the store
    above has lost.
    """

    kind = KIND

    def __init__(
        self,
        connection: LeaseConnection,
        change_log: ChangeLog,
        connected_nodes: ConnectedNodes,
        lose: Callable[[Mapping[str, LostLease]], None] = lambda lost: None,
        most: int = MOST_LEASES,
    ) -> None:
        self._connection = connection
        self._lose = lose
        self._most = most
        self._lost: Mapping[str, LostLease] = {}
        self._upstream = Upstream(connection)
        above = self._upstream
        self.relist, self.acquire, self.renew, self.release = above.list, above.acquire, above.renew, above.release
        self.reserve, self.unreserve, self.reclaim = above.reserve, above.unreserve, above.reclaim
        self.close = above.close
        self._reports = ReportForwarder(change_log, self._upstream.report)
        self._node_streams = NodeStreams(self._keep_connected)
        connected_nodes.subscribe(self._reports)
        connected_nodes.subscribe(self._node_streams)

    async def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store."""
        events, changed = TableEvents(self._connection.address), asyncio.Event()

        def notice(touched: frozenset[str]) -> None:
            events.touched |= touched
            changed.set()

        feed = Feed(self._connection, pb.VIEW_ALL, notice, relayed=True, most=self._most)
        tasks = [
            asyncio.create_task(feed.run()),
            asyncio.create_task(self._poll_quarantine(feed, events, changed)),
        ]
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

    async def report(self, progress: Progress) -> None:
        """See Store."""
        await self._reports.take(progress)

    async def discard(self, key: str, seen: Lease | str) -> None:
        """See Store. The lease service above compares with what it has seen itself."""
        await self._upstream.discard(key)

    async def _poll_quarantine(self, feed: Feed, events: TableEvents, changed: asyncio.Event) -> None:
        while True:
            if feed.connected:
                with suppress(FlanneletteError):
                    refused = await self._upstream.refused()
                    if refused != events.refused:
                        events.refused = refused
                        changed.set()
            await asyncio.sleep(_QUARANTINE_SECONDS if feed.connected else 1)

    async def _keep_connected(self, node: str) -> bool:
        """See Behind."""
        request = pb.WatchLeasesRequest(node=node, view=pb.VIEW_OWN, relayed=True)
        is_open = False
        try:
            async for message in self._connection.stub.WatchLeases(request):
                if readable(message).lost:
                    self._hand_on(node, LostLease(message.lost, asyncio.get_running_loop().time()))
                if not is_open:
                    is_open = True
                    await self._reports.repeat(node)
        except (grpc.aio.AioRpcError, Unavailable):
            pass  # opened again; the stream of the table says what is wrong
        finally:
            self._hand_on(node, None)
        return is_open

    def _hand_on(self, node: str, lost: LostLease | None) -> None:
        """The store above has lost a lease of a node here; None: not that it is known."""
        others = {other: what for other, what in self._lost.items() if other != node}
        self._lost = {**others, node: lost} if lost else others
        self._lose(self._lost)
