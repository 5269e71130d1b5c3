"""A lease service whose store the test plays, and its calls as a client makes them, but for the network.

service = PlayedService(A, B)               # what the store holds
service.tells(Upserted(C))                  # what happens in it
step = read(await anext(service.watch()))   # what a watcher gets
(await service.call("ListNodes")).nodes     # what a call answers
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Change, StoreStatus
from flannelette.services.lease.admission import GuardSettings, StorePipeline
from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.service import Identity, LeaseService
from flannelette.services.lease.stores.store import StoreEvent
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.telemetry.health import Health
from tests.examples.leases import NETWORK, by_name
from tests.services.lease import FakeStore, listing, news

NO_CONTEXT: Any = None
"""No call of the lease service looks at it."""


class PlayedService:
    """The whole service between a store that is played and its callers."""

    def __init__(
        self,
        *leases: Lease,
        store: FakeStore | None = None,
        listed: bool = True,
        share: float = 1.0,
        node: str = "",
        most_entries: int = 100,
        most_bytes: int = 1 << 20,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store = store or FakeStore(*leases)
        self.store.kind = "test"
        connected = ConnectedNodes(now)
        self._broker = Broker(
            "test",
            epoch="e",
            connected_nodes=connected,
            clock=now,
            timer=now,
            most_entries=most_entries,
            most_bytes=most_bytes,
        )
        self._pipeline = StorePipeline(self.store, self._broker, GuardSettings(share), clock=now)
        self.servicer = LeaseService(self.store, self._broker, self._pipeline, Identity(node), Health())
        if listed:
            self.take(StoreStatus("test", True), listing(by_name(*leases), NETWORK))

    def take(self, *events: StoreEvent) -> None:
        """These events happen in the store."""
        for event in events:
            self._pipeline.take(event)

    async def follow(self) -> None:
        """Asks the store again in time whether what is held back may go; for ever."""
        await self._pipeline.follow()

    @property
    def table(self) -> Mapping[str, Lease]:
        """The leases that watchers see."""
        return self._broker.table.leases

    def tells(self, *changes: Change, **more: Any) -> None:
        """These changes happen in the store; `more` is that of `news`."""
        self.take(news(*changes, **more))

    def watch(self, cursor: str = "", node: str = "", **request: Any) -> AsyncGenerator[bytes, None]:
        """The messages of WatchLeases, as they are sent."""
        asked = pb.WatchLeasesRequest(cursor=cursor, node=node, **request)
        stream: Any = self.servicer.WatchLeases(asked, NO_CONTEXT)
        return stream  # type: ignore[no-any-return]  # an async generator

    def watch_own(self, node: str) -> AsyncGenerator[bytes, None]:
        """Those of masq: the node's own lease."""
        return self.watch(node=node, view=pb.VIEW_OWN)

    def watch_as(self, node: str, cursor: str = "") -> AsyncGenerator[bytes, None]:
        """Those of the node's dataplane, which is connected as long as it reads them."""
        return self.watch(cursor, node, view=pb.VIEW_ALL)

    async def call(self, method: str, **request: Any) -> Any:
        """What a call answers."""
        asked = getattr(pb, f"{method}Request")(**request)
        return await getattr(self.servicer, method)(asked, NO_CONTEXT)

    def stop(self) -> None:
        """The process is about to end."""
        self._broker.stop()

    def elsewhere(self, *nodes: str) -> None:
        """These nodes are connected to some lease service, as the store says."""
        self._broker.connected_nodes.elsewhere = frozenset(nodes)

    def crowd(self, watchers: int) -> None:
        """There are so many watchers of the whole table."""
        self._broker.followers = watchers

    @property
    def streams(self) -> tuple[int, int]:
        """Open streams, and those among them of the whole table."""
        return self._broker.watchers, self._broker.followers


async def settle() -> None:
    """Whatever waits for nothing but its turn has had it."""
    for _ in range(8):
        await asyncio.sleep(0)
