"""A store with twenty leases behind the gate of a lease service, played in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from structlog.testing import capture_logs
from structlog.typing import EventDict

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Removed, Table
from flannelette.services.lease import metrics
from flannelette.services.lease.admission import GuardSettings, StorePipeline
from flannelette.services.lease.stores.store import Changed, Snapshot, StoreEvent
from flannelette.services.lease.watch import Broker
from tests.examples.leases import NETWORK, make_lease
from tests.services.lease import FakeStore
from tests.virtual_time import now, run_virtually

LEASES = [make_lease(number) for number in range(1, 21)]
SECONDS = 30.0


class World(FakeStore):
    """A store with twenty leases, and what a lease service makes of it."""

    def __init__(self) -> None:
        super().__init__(*LEASES)
        self.broker = Broker("fake", epoch="epoch")
        self.gate = StorePipeline(self, self.broker, GuardSettings(0.5, SECONDS), clock=lambda: 1000 + now())
        self.listings = 0
        self.listed_network = NETWORK

    async def relist(self) -> Snapshot:
        self.listings += 1
        return replace(await super().relist(), network=self.listed_network)

    def take(self, *events: StoreEvent) -> None:
        """These events happen in the store, and the service has them."""
        for event in events:
            self.gate.take(event)

    async def lose(self, *leases: Lease) -> None:
        """These are gone, and the watch says so."""
        for lease in leases:
            del self.leases[lease.name]
        self.events.put_nowait(Changed(tuple(Removed(lease.name) for lease in leases)))
        await asyncio.sleep(0.001)

    @property
    def table(self) -> int:
        return len(self.broker.table.leases)

    @property
    def served(self) -> Mapping[str, Lease]:
        """The leases that watchers see."""
        return self.broker.table.leases

    def restarted(self, memory: Table) -> None:
        """The process is new, and this is what the one before it has left."""
        self.broker = Broker("fake", epoch="epoch")
        self.gate = StorePipeline(
            self,
            self.broker,
            GuardSettings(0.5, SECONDS),
            recall=lambda served: memory,
            clock=lambda: 1000 + now(),
        )


@asynccontextmanager
async def following() -> AsyncIterator[World]:
    world = World()
    world.events.put_nowait(Snapshot(dict(world.leases), NETWORK))
    task = asyncio.create_task(world.gate.follow())
    await asyncio.sleep(0.001)
    yield world
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])


def played(scene: Callable[[World], Awaitable[None]]) -> None:
    """Plays it in virtual time."""

    async def play() -> None:
        async with following() as world:
            await scene(world)

    run_virtually(play())


def texts(lines: list[EventDict]) -> list[str]:
    return [line["event"] for line in lines if "network" not in line["event"]]


def counts() -> dict[str, float]:
    (family,) = metrics.GUARDED_REMOVALS.collect()
    return {s.labels["outcome"]: s.value for s in family.samples if s.name.endswith("_total")}


@pytest.fixture
def lines() -> Iterator[list[EventDict]]:
    """The log."""
    with capture_logs() as lines:
        yield lines
