"""The watch of etcd: lists the prefix, follows it, and goes on after an outage."""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.table import StoreStatus
from flannelette.services.lease.stores.etcd.rpc.client import EtcdClient
from flannelette.services.lease.stores.etcd.rpc.members import Timing
from flannelette.services.lease.stores.etcd.rpc.values import HistoryLost, NotAllowed, Untrue
from flannelette.services.lease.stores.etcd.transactor import Replica
from flannelette.services.lease.stores.store import StoreEvent
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.telemetry.logs import get_logger

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

    def __init__(self, client: EtcdClient, replica: Replica, timing: Timing) -> None:
        self._client = client
        self._replica = replica
        self._timing = timing
        self._is_listed = False
        """The changes since the replica's position are to be told; else all is listed."""
        self._status: StoreStatus | None = None
        self._opened_at = math.inf
        """When the watch of this attempt began to tell; never yet: infinite."""
        self._is_other_history = False
        """What is listed next has another history than what was told before."""
        self._pauses = Backoff(timing.retry_first, max(timing.retry_most, timing.retry_not_allowed))

    async def events(self) -> AsyncGenerator[StoreEvent, None]:
        """Yields the store's events for ever."""
        while True:
            self._opened_at, most = math.inf, self._timing.retry_most
            try:
                async with aclosing(self._connection()) as connection:
                    async for event in connection:
                        yield event
            except HistoryLost as lost:
                log.info("the changes since the last connection are not available: listing again", reason=str(lost))
                self._is_listed = False
                self._is_other_history |= lost.is_replaced
            except Unavailable as error:
                self._is_listed = self._is_listed and not isinstance(error, Untrue)
                if isinstance(error, NotAllowed):
                    most = self._timing.retry_not_allowed
                if status := self._changed(StoreStatus(KIND, connected=False, error=str(error))):
                    yield status
            if asyncio.get_running_loop().time() - self._opened_at > most:
                self._pauses.reset()
            await asyncio.sleep(self._pauses.next(most))

    async def _connection(self) -> AsyncGenerator[StoreEvent, None]:
        """Yields the events of one connection until it is lost. Raises HistoryLost or Unavailable."""
        replica, root = self._replica, self._replica.prefix.keyspace.root
        if self._is_listed:  # before we say that it is connected
            await self._client.require_history(root, replica.prefix.position, replica.prefix.newest)
        else:
            replica.replace(await replica.listing(replica.prefix))
            self._is_listed = True
            await asyncio.sleep(0)  # ten thousand leases take some 50 ms, here and in the consumer
            yield replace(replica.prefix.snapshot(), is_other_history=self._is_other_history)
            self._is_other_history = False
        try:
            async with aclosing(self._client.watch(root, replica.prefix.position)) as batches:
                async for batch in batches:
                    self._opened_at = min(self._opened_at, asyncio.get_running_loop().time())
                    changed = replica.fold(batch)  # who is told of it may ask at once
                    if status := self._changed(_CONNECTED):
                        yield status
                    if changed:
                        yield changed
        finally:
            replica.is_live = False

    def _changed(self, status: StoreStatus) -> StoreStatus | None:
        if status == self._status:
            return None
        self._status = status
        return status
