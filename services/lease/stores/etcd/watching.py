"""Follows the prefix for ever: listing, watch, outages, and back again."""

import asyncio
import math
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from services.core.errors import Unavailable
from services.core.table import StoreStatus
from services.lease.store import StoreEvent
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.index import Index
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.listing import read_listing
from services.lease.stores.etcd.members import Timing
from services.lease.stores.etcd.mirror import Mirror
from services.lease.stores.etcd.records import HistoryLost, NotAllowed
from services.runtime.collector import making
from services.runtime.logs import get_logger

log = get_logger()

KIND: Final = "etcd"
_CONNECTED: Final = StoreStatus(KIND, connected=True)


class Watcher:
    """One iteration of Store.watch().

    * The first event that is no StoreStatus is a Snapshot. A StoreStatus comes when the state changes; connected
      follows the Snapshot, or precedes what happened during an outage that was resumed without a gap.
    * A lost connection resumes where it was; a compacted or replaced history is listed anew.
    * Never more than one attempt a pause; pauses double from `retry_first` to `retry_most` (`retry_not_allowed` when
      etcd does not let us in), with jitter, and start again after a watch that was open longer than that.
    """

    def __init__(
        self, client: EtcdClient, keyspace: Keyspace, decoder: Decoder, timing: Timing, index: Index
    ) -> None:
        self._client = client
        self._keyspace = keyspace
        self._decoder = decoder
        self._timing = timing
        self._index = index
        self._mirror = Mirror(keyspace, decoder)
        self._status: StoreStatus | None = None
        self._opened_at = math.inf
        """When the watch of this attempt began to tell; never yet: infinite."""
        self._next_pause = timing.retry_first

    async def events(self) -> AsyncGenerator[StoreEvent, None]:
        """For ever."""
        while True:
            self._opened_at, most = math.inf, self._timing.retry_most
            try:
                async with aclosing(self._connection()) as connection:
                    async for event in connection:
                        yield event
            except HistoryLost as lost:
                log.info("the changes since the last connection cannot be had: listing anew", reason=str(lost))
                self._mirror.position = None
            except Unavailable as error:
                if isinstance(error, NotAllowed):
                    most = self._timing.retry_not_allowed
                if status := self._changed(StoreStatus(KIND, connected=False, error=str(error))):
                    yield status
            await self._pause(most)

    async def _pause(self, most: float) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._opened_at > most:
            self._next_pause = self._timing.retry_first
        pause = min(self._next_pause, most)
        self._next_pause = 2 * pause
        await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - jitter

    async def _connection(self) -> AsyncGenerator[StoreEvent, None]:
        """Until the connection is lost. Raises HistoryLost or Unavailable."""
        position, listed = self._mirror.position, None
        if position is None:
            listed = await read_listing(self._client, self._keyspace, self._decoder)
            position = listed[1]
            with making(len(listed[0])):
                snapshot = self._mirror.replace(*listed)
            await asyncio.sleep(0)  # ten thousand leases take some 50 ms, here and in whoever takes them
            yield snapshot
        else:  # before we say that it is connected
            await self._client.require_history(self._keyspace.root, position, self._mirror.newest)
        try:
            async with aclosing(self._client.watch(self._keyspace.root, position)) as batches:
                async for batch in batches:
                    if listed:  # only now: meanwhile the first watchers are served
                        self._index.replace(*listed)
                        listed = None
                    self._opened_at = min(self._opened_at, asyncio.get_running_loop().time())
                    self._index.fold(batch.events, batch.position.revision)  # who is told of it may ask at once
                    self._index.live = True
                    if status := self._changed(_CONNECTED):
                        yield status
                    if event := self._mirror.fold(batch):
                        yield event
        finally:
            self._index.live = False

    def _changed(self, status: StoreStatus) -> StoreStatus | None:
        if status == self._status:
            return None
        self._status = status
        return status
