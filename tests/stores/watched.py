"""One entry to the lease service for any store: these store events, what does a watcher see.

async with watched() as service:          # events that the test plays
    await service.take(Snapshot(...), Changed(...))
    assert service.seen.leases == ...

async with watched(store) as service:     # a real store, and what happens in it
    await service.until(lambda seen: lease.name in seen.leases)
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.table import Table
from flannelette.services.lease.admission import GuardSettings, StorePipeline
from flannelette.services.lease.imports.cluster import Imports
from flannelette.services.lease.service import list_quarantine
from flannelette.services.lease.stores.store import Store, StoreEvent
from flannelette.services.lease.watch import Broker, watch_all
from tests.examples.leases import read
from tests.patience import PATIENCE
from tests.services.lease import FakeStore


class WatchedService:
    """The lease service between a store and a watcher of all leases."""

    def __init__(self, store: Store, share: float) -> None:
        self.seen = Table()
        """What the watcher has."""
        self.broker = Broker(store.kind, epoch="e")
        self.pipeline = StorePipeline(store, self.broker, GuardSettings(share))
        self._changed = asyncio.Event()

    @property
    def quarantine(self) -> dict[str, tuple[int, str]]:
        """Kind and reason of each refused key, as ListQuarantine answers."""
        answer: pb.ListQuarantineResponse = list_quarantine(self.pipeline, Imports((), self.broker))
        return {key.key: (key.kind, key.reason) for key in answer.keys}

    async def take(self, *events: StoreEvent) -> None:
        """These events happen in the store; returns when the watcher has what follows from them."""
        for event in events:
            self.pipeline.take(event)
        if self.broker.table.synced:
            await self.until(lambda seen: seen.cursor == self.broker.change_log.cursor)

    async def until(self, claim: Callable[[Table], bool]) -> None:
        """Returns when the claim is true of what the watcher has."""
        async with asyncio.timeout(PATIENCE):
            while not claim(self.seen):
                self._changed.clear()
                await self._changed.wait()

    async def watch(self) -> None:
        """The watcher, for ever."""
        async with aclosing(watch_all(self.broker, "")) as messages:
            async for message in messages:
                self.seen.fold(read(message))
                self._changed.set()


@asynccontextmanager
async def watched(store: Store | None = None, *, share: float = 1.0) -> AsyncIterator[WatchedService]:
    """The service over this store, or over events that the test plays; `share` is that of --guard-share."""
    service = WatchedService(store or FakeStore(), share)
    tasks = [asyncio.create_task(service.watch())]
    if store is not None:
        tasks.append(asyncio.create_task(service.pipeline.follow()))
    try:
        yield service
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
