"""The inputs of the rules: those of the feed, or until its first snapshot, those cached before a restart."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from flannelette.services.core.leases.table import KUBE, Table
from flannelette.services.masq.reconcile.reconciler import Reconciler
from flannelette.services.masq.rules.inputs import CachedInputs, own_lease
from flannelette.services.runtime.cache.node_state import PATIENCE, CachedTable, CacheWriter, StateFile, stale_reason
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_LONGEST_LEASE: Final = 86_400.0
"""Seconds after which a lease of any store has expired, or was renewed."""


class InputCache:
    """Gives the inputs to the reconciler, and keeps them on disk for a reboot."""

    def __init__(
        self,
        node: str,
        file: StateFile,
        cached: CachedTable,
        reconciler: Reconciler,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._node = node
        self._reconciler = reconciler
        self._clock = clock
        self._cached_table = cached
        self._cache_writer = CacheWriter(node, file)
        self._cached: CachedInputs | None = None
        self._waits_for_feed = True
        self._received: tuple[Table, str] | None = None

    def update(self, received: Table, away: str) -> None:
        """Takes the present state of the feed. `away`: why the lease service does not answer; empty if it does."""
        self._received = received, away
        store_error = received.store.error if received.store else ""
        is_away = not self._waits_for_feed and bool(away or store_error or received.network_error)
        table = self._cached_table.choose(received, is_away=is_away)
        if table is None or table is received:
            self._cached = None
        elif self._cached is None:
            self._cached = self._recall(table)
        self._reconciler.learn(received, away, self._cached)
        inputs = self._reconciler.inputs
        is_allowed = inputs.network_error == received.network_error
        if table is received and is_allowed:
            own = own_lease(received, self._node)
            allowed = replace(received, leases=dict(received.leases))
            networks = (inputs.network,) if inputs.network is not None else ()
            self._cache_writer.update(allowed, own, (), is_current=not (away or store_error), networks=networks)

    async def run(self) -> None:
        """Ends the wait for the feed after PATIENCE, then writes the cache until cancelled."""
        await asyncio.sleep(PATIENCE)
        self._waits_for_feed = False
        if self._received is not None:
            self.update(*self._received)
        await self._cache_writer.run()

    async def close(self) -> None:
        """Writes unwritten changes; for the end of the process, after the job."""
        await self._cache_writer.write()

    def _recall(self, table: Table) -> CachedInputs:
        confirmed_at, reason = self._cached_table.confirmed_at, f"the rules are those of {self._cached_table.since}"
        own = own_lease(table, self._node)
        if own is None:
            return CachedInputs(table, reason)
        if own.expires_at is None and not own.reserved and (table.store is None or table.store.kind != KUBE):
            own = own.with_time(confirmed_at + _LONGEST_LEASE)  # only the holder and the store know its end
        why_not = stale_reason(own, confirmed_at, self._clock())
        if not why_not:
            return CachedInputs(table, reason)
        reason = f"{reason}; the own lease {own.name} may be another node's by now: {why_not}"
        log.warning("the cached own lease is not used", lease=own.name, reason=why_not)
        others = {name: lease for name, lease in table.leases.items() if name != own.name}
        return CachedInputs(replace(table, leases=others), reason)
