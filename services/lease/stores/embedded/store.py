"""The embedded store: leases in a SQLite file, the network in a JSON file, and no other process."""

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Final

import structlog

from services.core.errors import LostRace, NotFound, NotYet, Unavailable
from services.core.lease import Lease, LeaseRequest
from services.core.progress import Progress
from services.core.subnets import Draw
from services.core.table import Change, Removed, StoreStatus, Upserted
from services.lease.store import Changed, Snapshot, StoreEvent
from services.lease.stores.embedded.acquisition import decide, without_holder
from services.lease.stores.embedded.database import Database
from services.lease.stores.embedded.network_file import NetworkFile

log = structlog.get_logger()

_LOOK_SECONDS: Final = 1.0
"""How often the network file is looked at: flannel's interval."""


class EmbeddedStore:
    """A store in this process: what it answers has happened, and is on disk.

    The file belongs to one process; leases survive a restart, those that ran out meanwhile do not. `path` None keeps
    leases in memory. `clock` is Unix time, since a lease outlives the process that gave it.
    """

    kind = "embedded"

    def __init__(
        self,
        path: Path | None,
        *,
        net_config_path: Path,
        lease_seconds: int,
        clock: Callable[[], float] = time.time,
        draw: Draw = random.randrange,
    ) -> None:
        self._database = Database(path)
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._draw = draw
        self._file = NetworkFile(net_config_path)
        self._file.look()
        self._leases, self._refused = self._database.load()
        self._pending: list[Change] = []
        self._cleared: set[str] = set()
        self._news = asyncio.Event()
        self._expire()

    async def watch(self) -> AsyncIterator[StoreEvent]:
        """See Store. One task does all that needs time: leases run out to the moment, the file is looked at."""
        self._expire()
        self._pending.clear()
        yield Snapshot(dict(self._leases), self._file.network, self._file.error, self._refused)
        connected = True
        while True:
            try:
                self._expire()
            except Unavailable as error:  # a full disk, say: what has run out goes once it can be written
                connected = False
                yield StoreStatus(self.kind, connected, str(error))
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            if not connected:
                connected = True
                yield StoreStatus(self.kind, connected)
            looks_new = self._file.look()
            if looks_new or self._pending:
                network = self._file.network if looks_new and not self._file.error else None
                changes, self._pending = tuple(self._pending), []
                cleared, self._cleared = frozenset(self._cleared), set()
                yield Changed(changes, network, self._file.error if looks_new else "", cleared=cleared)
            else:
                self._news.clear()
                await self._news_within(self._seconds_to_wait())

    async def relist(self) -> Snapshot:
        """See Store: what the file says, not what is in memory. The network is the one in force."""
        leases, refused = self._database.load()
        return Snapshot(leases, self._file.network, self._file.error, refused)

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store. Never LostRace: nobody else writes."""
        self._expire()
        network = self._file.network
        if network is None:
            raise NotYet(self._file.error)
        chosen = decide(network, self._leases, request, self._full_time(), self._draw)
        for lease in chosen.given_up:
            log.info("a lease no longer fits the network and is given up", lease=lease.name, node=lease.node)
        freed = [without_holder(lease) for lease in chosen.given_up if lease.reserved]
        gone = [lease.name for lease in chosen.given_up if not lease.reserved]
        if chosen.lease.name not in self._leases:
            log.info("lease given", lease=chosen.lease.name, node=request.node)
        self._write(put=[*freed, chosen.lease], delete=gone)
        return chosen.lease

    async def renew(self, node: str, name: str) -> Lease:
        """See Store."""
        self._expire()
        lease = self._leases.get(name)
        if lease is None or lease.node != node:
            raise NotFound(f"node {node} does not hold the lease {name} any more: acquire again")
        if lease.reserved:
            return lease
        renewed = lease.with_time(self._full_time())
        self._write(put=[renewed])
        return renewed

    async def release(self, node: str, name: str) -> None:
        """See Store."""
        self._expire()
        lease = self._leases.get(name)
        if lease is None or lease.node != node:
            return
        log.info("lease released", lease=name, node=node)
        if lease.reserved:
            self._write(put=[without_holder(lease)])
        else:
            self._write(delete=[name])

    async def report(self, progress: Progress) -> None:
        """See Store. Nobody asks this store."""

    def made(self, name: str) -> int:
        """See Store. Nobody else writes here, so that no two leases overlap."""
        return 0

    async def discard(self, key: str, seen: Lease | str) -> None:
        """See Store."""
        lease = self._leases.get(key)
        if (lease or self._refused.get(key)) is None:
            raise NotFound(f"there is no key {key} in the lease database any more")
        if seen not in (lease, self._refused.get(key)):
            raise LostRace(f"the key {key} is something else by now: look at the quarantine again")
        self._write(delete=[key])

    async def close(self) -> None:
        """See Store."""
        self._database.close()

    def _full_time(self) -> float:
        """Whole seconds read well, and survive the wire unchanged."""
        return float(math.ceil(self._clock() + self._lease_seconds))

    def _expire(self) -> None:
        now = self._clock()
        gone = [
            name for name, lease in self._leases.items() if lease.expires_at is not None and lease.expires_at <= now
        ]
        if gone:
            log.info("leases ran out", leases=gone)
            self._write(delete=gone)

    def _write(self, put: Iterable[Lease] = (), delete: Iterable[str] = ()) -> None:
        put, delete = list(put), list(delete)
        self._database.write(put, delete)
        for name in delete:
            self._leases.pop(name, None)
            self._cleared |= {name} & self._refused.keys()
            self._refused.pop(name, None)
        self._leases.update((lease.name, lease) for lease in put)
        self._pending += [*map(Removed, delete), *map(Upserted, put)]
        self._news.set()

    def _seconds_to_wait(self) -> float:
        times = (lease.expires_at for lease in self._leases.values() if lease.expires_at is not None)
        return max(0.0, min(_LOOK_SECONDS, min(times, default=math.inf) - self._clock()))

    async def _news_within(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._news.wait()
        except TimeoutError:
            pass
