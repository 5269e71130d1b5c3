"""The store relay: the table, the leases and the errors of another lease service, handed on."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import grpc.aio
from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import FlanneletteError, Unavailable
from services.core.family import Network
from services.core.lease import Lease, LeaseRequest
from services.core.measures import MOST_LEASES
from services.core.progress import Progress
from services.lease.administration import Reclaim, Reclaimed
from services.lease.broker import Lost
from services.lease.history import History
from services.lease.presence import Presence
from services.lease.store import Snapshot, StoreEvent
from services.lease.stores.relay.behind import Behind
from services.lease.stores.relay.following import KIND, Following
from services.lease.stores.relay.reporting import Reporting
from services.lease.stores.relay.upstream import Upstream
from services.runtime.feed import Feed, LeaseConnection
from services.runtime.interceptor import readable

_QUARANTINE_SECONDS: Final = 15.0
"""Between two looks at the quarantine above, which no stream tells of."""


class RelayStore:
    """A Store (services.lease.store) in another lease service, which may be a relay itself.

    * One stream of the whole table from above, however many watchers there are below.
    * A write is answered when the lease service above has answered it; its errors come back as they are.
    * A node that is connected here counts as connected above, and its reports are handed on.

    `history` is that of the table below: its positions are what nodes report. `lose` tells the nodes below what the
    store above has lost.
    """

    kind = KIND

    def __init__(
        self,
        connection: LeaseConnection,
        history: History,
        presence: Presence,
        lose: Callable[[Mapping[str, Lost]], None] = lambda lost: None,
        most: int = MOST_LEASES,
    ) -> None:
        self._connection = connection
        self._lose = lose
        self._most = most
        self._lost: Mapping[str, Lost] = {}
        self._upstream = Upstream(connection)
        self._reporting = Reporting(history, self._upstream.report)
        self._behind = Behind(self._keep_connected)
        presence.tell(self._reporting)
        presence.tell(self._behind)

    async def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store."""
        following, news = Following(self._connection.address), asyncio.Event()

        def notice(touched: frozenset[str]) -> None:
            following.touched |= touched
            news.set()

        feed = Feed(self._connection, pb.VIEW_ALL, notice, relayed=True, most=self._most)
        tasks = [
            asyncio.create_task(feed.run()),
            asyncio.create_task(self._look_at_quarantine(feed, following, news)),
        ]
        for task in tasks:
            task.add_done_callback(lambda _: news.set())
        try:
            while True:
                await news.wait()
                news.clear()
                for task in tasks:
                    if task.done():
                        task.result()  # they never end but by a defect, which ends the process
                cursor = feed.table.cursor
                for event in following.events(feed.table, feed.connected, feed.error):
                    yield event
                if cursor:  # whoever iterates has taken it all by now
                    self._reporting.reached(cursor)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def tell_of_nodes(self) -> None:
        """A job for as long as the store is in use: tells the lease service above of the nodes here."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._behind.run())
            group.create_task(self._reporting.run())

    async def relist(self) -> Snapshot:
        """See Store."""
        return await self._upstream.list()

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store."""
        return await self._upstream.acquire(request)

    async def renew(self, node: str, name: str) -> Lease:
        """See Store."""
        return await self._upstream.renew(node, name)

    async def release(self, node: str, name: str) -> None:
        """See Store."""
        await self._upstream.release(node, name)

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """See Store."""
        return await self._upstream.reserve(cidrs, node)

    async def unreserve(self, name: str) -> None:
        """See Store."""
        await self._upstream.unreserve(name)

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """See Store. Who is alive, the lease service above knows."""
        return await self._upstream.reclaim(wanted, dry_run=dry_run)

    async def report(self, progress: Progress) -> None:
        """See Store."""
        await self._reporting.take(progress)

    async def discard(self, key: str, seen: Lease | str) -> None:
        """See Store. The lease service above compares with what it has seen itself."""
        await self._upstream.discard(key)

    async def close(self) -> None:
        """See Store."""
        await self._upstream.close()

    async def _look_at_quarantine(self, feed: Feed, following: Following, news: asyncio.Event) -> None:
        while True:
            if feed.connected:
                with suppress(FlanneletteError):
                    refused = await self._upstream.refused()
                    if refused != following.refused:
                        following.refused = refused
                        news.set()
            await asyncio.sleep(_QUARANTINE_SECONDS if feed.connected else 1)

    async def _keep_connected(self, node: str) -> bool:
        """See Behind."""
        request = pb.WatchLeasesRequest(node=node, view=pb.VIEW_OWN, relayed=True)
        is_open = False
        try:
            async for message in self._connection.stub.WatchLeases(request):
                if readable(message).lost:
                    self._hand_on(node, Lost(message.lost, asyncio.get_running_loop().time()))
                if not is_open:
                    is_open = True
                    await self._reporting.repeat(node)
        except (grpc.aio.AioRpcError, Unavailable):
            pass  # opened again; the stream of the table says what is wrong
        finally:
            self._hand_on(node, None)
        return is_open

    def _hand_on(self, node: str, lost: Lost | None) -> None:
        """The store above has lost a lease of a node here; None: not that it is known."""
        others = {other: what for other, what in self._lost.items() if other != node}
        self._lost = {**others, node: lost} if lost else others
        self._lose(self._lost)
