"""Follows a store, or a lease service as a node does, so that a test can wait for what it expects."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.leases.table import StoreStatus, Upserted
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.events import NodeJournal
from flannelette.services.dataplane.node.lease_renewer import LeaseRenewer
from flannelette.services.lease.stores.store import Changed, Refusal, Snapshot, Store, StoreEvent
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from tests.patience import PATIENCE


@dataclass
class Follower:
    """What the events of one watch add up to."""

    events: list[StoreEvent] = field(default_factory=list)
    leases: dict[str, Lease] = field(default_factory=dict)
    network: NetworkConfig | None = None
    network_error: str = ""
    refused: dict[str, str] = field(default_factory=dict)
    statuses: list[StoreStatus] = field(default_factory=list)
    snapshots: int = 0
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def connected(self) -> bool:
        return bool(self.statuses) and self.statuses[-1].connected

    @property
    def listings(self) -> list[Snapshot]:
        """The complete listings among the events."""
        return [event for event in self.events if isinstance(event, Snapshot)]

    @property
    def news(self) -> list[Changed]:
        """The changes among the events."""
        return [event for event in self.events if isinstance(event, Changed)]

    @property
    def nodes(self) -> dict[str, str]:
        """Which node holds which lease."""
        return {name: lease.node for name, lease in self.leases.items()}

    async def until(self, claim: Callable[["Follower"], bool], seconds: float = PATIENCE) -> None:
        """Returns when the claim is true; fails with what there is if it does not come true."""
        try:
            async with asyncio.timeout(seconds):
                while not claim(self):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"did not happen within {seconds} s; there is {self}") from None

    async def follow(self, store: Store) -> None:
        async for event in store.watch():
            self.take(event)
            self._news.set()

    def take(self, event: StoreEvent) -> None:
        self.events.append(event)
        if isinstance(event, StoreStatus):
            self.statuses.append(event)
            return
        if isinstance(event, Snapshot):
            self.snapshots += 1
            self.leases, self.refused = dict(event.leases), _reasons(event)
            self.network_error = event.network_error
        else:
            self.refused = {key: why for key, why in self.refused.items() if key not in event.cleared}
            self.refused |= _reasons(event)
            self.network_error = event.network_error or ("" if event.network else self.network_error)
            for change in event.changes:
                if isinstance(change, Upserted):
                    self.leases[change.lease.name] = change.lease
                else:
                    self.leases.pop(change.name, None)
        self.network = event.network or self.network


def _reasons(event: Snapshot | Changed) -> dict[str, str]:
    return {key: why.reason if isinstance(why, Refusal) else why for key, why in event.refused.items()}


@asynccontextmanager
async def following(store: Store) -> AsyncIterator[Follower]:
    """Follows while the block runs; begins with the first Snapshot or StoreStatus."""
    follower = Follower()
    task = asyncio.create_task(follower.follow(store))
    try:
        await follower.until(lambda f: bool(f.events))
        yield follower
    finally:
        task.cancel()
        await asyncio.wait([task])
    assert task.cancelled(), task.exception()


class Node:
    """A dataplane without a kernel: it holds a lease, and follows the table."""

    def __init__(self, address: str, request: LeaseRequest) -> None:
        self.connection = LeaseConnection(address, request.node)
        self._wake = asyncio.Event()
        self.renewer = LeaseRenewer(self.connection, 3600, self._wake.set, NodeJournal())
        self.feed = Feed(self.connection, pb.VIEW_ALL, self.notice)
        self.renewer.set_request(request)

    @property
    def is_settled(self) -> bool:
        """The table has its lease as it was published."""
        held = self.renewer.lease
        shown = self.feed.table.leases.get(held.name) if held else None
        return held is not None and not self.renewer.reason and shown is not None and shown.subnets == held.subnets

    def notice(self, touched: frozenset[str]) -> None:
        if self.feed.table.lost:
            self.renewer.hear_of_loss(self.feed.table.lost)
        self._wake.set()

    async def look(self) -> None:
        """As the dataplane, whenever something has happened."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.renewer.observe(self.feed.table)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.feed.run())
                group.create_task(self.renewer.run())
                group.create_task(self.look())
        finally:
            await self.connection.close()


@asynccontextmanager
async def running(node: Node) -> AsyncIterator[None]:
    """It lives meanwhile."""
    task = asyncio.create_task(node.run())
    yield
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
