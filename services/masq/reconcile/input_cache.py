"""What the rules go by: what the feed says, or until that has a snapshot, what this node remembers of before."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from services.core.leases.table import KUBE, Table
from services.masq.reconcile.reconciler import Reconciler
from services.masq.rules.inputs import CachedInputs, own_lease
from services.runtime.cache.cache_writer import CacheWriter, RunBlocking
from services.runtime.cache.cached_table import PATIENCE, CachedTable, stale_reason
from services.runtime.cache.state_file import StateFile
from services.runtime.telemetry.logs import get_logger

log = get_logger()

_LONGEST_LEASE: Final = 86_400.0
"""Seconds, whatever the store: a lease that was there at a time has run out so much later, or was renewed."""


class InputCache:
    """Tells the reconciler, and has on disk what it would need after a reboot."""

    def __init__(
        self,
        node: str,
        file: StateFile,
        cached: CachedTable,
        reconciler: Reconciler,
        clock: Callable[[], float] = time.time,
        run_blocking: RunBlocking = asyncio.to_thread,
    ) -> None:
        self._node = node
        self._reconciler = reconciler
        self._clock = clock
        self._cached_table = cached
        self._cache_writer = CacheWriter(node, file, run_blocking)
        self._cached: CachedInputs | None = None
        self._is_patient = True
        self._told: tuple[Table, str] | None = None

    def update(self, told: Table, away: str) -> None:
        """Takes what the feed knows now. `away`: why the lease service does not answer; empty if it does."""
        self._told = told, away
        store_error = told.store.error if told.store else ""
        is_away = not self._is_patient and bool(away or store_error or told.network_error)
        table = self._cached_table.choose(told, is_away=is_away)
        if table is None or table is told:
            self._cached = None
        elif self._cached is None:
            self._cached = self._recall(table)
        self._reconciler.learn(told, away, self._cached)
        inputs = self._reconciler.inputs
        if table is told and inputs.network_error == told.network_error:  # else it is not allowed here
            own = own_lease(told, self._node)
            allowed = replace(told, leases=dict(told.leases))
            self._cache_writer.update(allowed, own, (), is_current=not (away or store_error), network=inputs.network)

    async def run(self) -> None:
        """For ever."""
        await asyncio.sleep(PATIENCE)
        self._is_patient = False
        if self._told is not None:
            self.update(*self._told)
        await self._cache_writer.run()
        await asyncio.Event().wait()

    async def close(self) -> None:
        """Writes what is not written yet. Call it when the job has ended."""
        await self._cache_writer.close()

    def _recall(self, table: Table) -> CachedInputs:
        confirmed_at, reason = self._cached_table.confirmed_at, f"the rules are those of {self._cached_table.since}"
        own = own_lease(table, self._node)
        if own is None:
            return CachedInputs(table, reason)
        if own.expires_at is None and not own.reserved and (table.store is None or table.store.kind != KUBE):
            own = own.with_time(confirmed_at + _LONGEST_LEASE)  # only its holder and the store know when it ends
        why_not = stale_reason(own, confirmed_at, self._clock())
        if not why_not:
            return CachedInputs(table, reason)
        reason = f"{reason}; its lease {own.name} may be another node's by now: {why_not}"
        log.warning("the cached own lease is not used", lease=own.name, reason=why_not)
        others = {name: lease for name, lease in table.leases.items() if name != own.name}
        return CachedInputs(replace(table, leases=others), reason)
