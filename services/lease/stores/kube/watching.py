"""Follows the nodes for ever: listing, watch, outages, and back again."""

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from services.core.errors import Unavailable
from services.core.table import KUBE, StoreStatus
from services.lease.store import StoreEvent
from services.lease.stores.kube.client import KubeClient
from services.lease.stores.kube.mirror import Mirror
from services.lease.stores.kube.records import Busy, Expired, Gone, Silent, Timing


class Watcher:
    """One iteration of Store.watch().

    * The first event that is no StoreStatus is a Snapshot. A StoreStatus comes when the state changes; that a watch
      ends, as each does after some minutes, is none.
    * A watch that ended, broke or fell silent is resumed where it was, and listed anew only when that place has
      expired. Only if it cannot be opened again at once is the API away.
    * Never more than one attempt a pause; pauses double from `retry_first` to `retry_most`, with jitter, are at least
      as long as the server asks for, and start again after a watch that was open for longer than the pause before it.
    """

    def __init__(self, client: KubeClient, mirror: Mirror, timing: Timing, selector: str = "") -> None:
        self._client = client
        self._mirror = mirror
        self._timing = timing
        self._selector = selector
        self._status: StoreStatus | None = None
        self._opened = math.inf
        """When the watch was opened."""

    async def events(self) -> AsyncGenerator[StoreEvent, None]:
        """For ever."""
        pause = self._timing.retry_first
        while True:
            self._opened, asked, error = math.inf, 0.0, ""
            try:
                async with aclosing(self._connection()) as connection:
                    async for event in connection:
                        yield event
            except Silent:  # perhaps the server is frozen, or a way to it is lost: then this fails
                pause = self._timing.retry_first
                continue
            except Expired:
                self._mirror.position = ""
            except Gone as nothing:
                error = f"the Kubernetes API has no nodes ({nothing}): is it an API server?"
            except Unavailable as unavailable:
                error = str(unavailable)
                asked = unavailable.seconds if isinstance(unavailable, Busy) else 0.0
            if time.monotonic() - self._opened > pause:
                pause = self._timing.retry_first
            elif error and (status := self._changed(StoreStatus(KUBE, connected=False, error=error))):
                yield status
            await asyncio.sleep(asked + random.uniform(pause / 2, pause))  # noqa: S311 - jitter
            pause = min(2 * pause, self._timing.retry_most)

    async def _connection(self) -> AsyncGenerator[StoreEvent, None]:
        """Until it ends. Raises Expired, Gone or Unavailable."""
        if not self._mirror.position:
            yield self._mirror.replace(*await self._client.list_nodes(self._selector))
        async with aclosing(self._client.watch_nodes(self._mirror.position, self._selector)) as batches:
            async for batch in batches:
                self._opened = min(self._opened, time.monotonic())
                if status := self._changed(StoreStatus(KUBE, connected=True)):
                    yield status
                if event := self._mirror.fold(batch):
                    yield event

    def _changed(self, status: StoreStatus) -> StoreStatus | None:
        if status == self._status:
            return None
        self._status = status
        return status
