"""The table that a lease service keeps in a file, for the process that comes after."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Change, Table
from flannelette.services.lease.admission import SnapshotCache
from flannelette.services.lease.watch import Broker
from tests.examples.leases import NETWORK, by_name
from tests.services.lease import listing, news
from tests.virtual_time import run_virtually


def _broker(*leases: Lease) -> Broker:
    broker = Broker("fake", epoch="epoch")
    broker.take(listing(by_name(*leases), NETWORK))
    return broker


def remember(path: Path, *leases: Lease) -> None:
    """A process has these, and stops."""

    async def life() -> None:
        broker = _broker(*leases)
        broker.stop()
        await SnapshotCache(path, broker).write()

    run_virtually(life())


def recall(path: Path, served: Mapping[str, Lease] | None = None) -> Table:
    """What the next process knows from before; `served`: what it serves already."""
    return SnapshotCache(path, _broker()).recall(served or {})


def start_and_stop_without_a_table(path: Path) -> None:
    """A process has had no answer from its store, and stops."""

    async def life() -> None:
        broker = Broker("fake", epoch="epoch")
        broker.stop()
        cache = SnapshotCache(path, broker)
        await cache.run()
        await cache.write()

    run_virtually(life())


class Keeper:
    """A process that keeps its table."""

    def __init__(self, path: Path, *leases: Lease) -> None:
        self._broker = _broker(*leases)
        self.cache = SnapshotCache(path, self._broker)

    @property
    def problem(self) -> object:
        """Why the file is not what the table is; false: it is."""
        return self.cache.file.problem

    def tells(self, *changes: Change, **more: Any) -> None:
        """This happens in the store."""
        self._broker.take(news(*changes, **more))


@asynccontextmanager
async def keeping(path: Path, *leases: Lease) -> AsyncIterator[Keeper]:
    """A process that has these, until it is killed."""
    keeper = Keeper(path, *leases)
    task = asyncio.create_task(keeper.cache.run())
    await asyncio.sleep(0)
    try:
        yield keeper
    finally:
        task.cancel()
        await asyncio.wait([task])
