"""The lease table: folds what happens in the store, and keeps it ready to be sent."""

import asyncio
import time
from collections.abc import Callable
from typing import Final

from services.core.errors import Unavailable
from services.core.lease import Lease
from services.core.table import Step, StoreStatus, Table, Upserted
from services.lease import metrics
from services.lease.encoding import RESET, SYNCED, encode, encode_change, messages
from services.lease.history import Entry, History
from services.lease.holdings import Holdings
from services.lease.presence import Presence
from services.lease.quarantine import Quarantine
from services.lease.reports import Reports
from services.lease.signals import Signals
from services.lease.steps import NOTHING, step_of
from services.lease.store import Store, StoreEvent

_MOST_ENTRIES: Final = 20_000
_MOST_BYTES: Final = 16 << 20


class Broker:
    """Keeps `table` equal to the store, and what watchers need (`services.lease.watchers`) beside it.

    Each change is serialised once, whoever watches. What changes nothing, such as a Snapshot after a reconnect that
    equals the table, wakes nobody. Everything runs in one event loop, and nothing but `has` and `follow` waits.
    """

    def __init__(
        self,
        kind: str,
        *,
        epoch: str,
        presence: Presence | None = None,
        clock: Callable[[], float] = time.time,
        most_entries: int = _MOST_ENTRIES,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self.table = Table(store=StoreStatus(kind, False, f"the {kind} store has not answered yet"))
        self.history = History(epoch, most_entries, most_bytes)
        self.holdings = Holdings()
        self.quarantine = Quarantine(clock)
        self.signals = Signals()
        self.reports = Reports(self.history, clock)
        self.presence = presence or Presence()
        self.presence.tell(self.reports)
        self.watchers = 0
        """Open streams."""
        self._pieces: dict[str, bytes] = {}
        self._snapshot: tuple[bytes, ...] = ()

    @property
    def store_status(self) -> StoreStatus:
        """Whether the store answers."""
        assert self.table.store is not None  # noqa: S101 - set from the start, and never cleared
        return self.table.store

    async def follow(self, store: Store) -> None:
        """Takes what happens in the store, for ever."""
        async for event in store.watch():
            self.take(event)

    def take(self, event: StoreEvent) -> None:
        """Folds one event, and wakes those whom it concerns."""
        self.quarantine.take(event)
        metrics.QUARANTINED.set(len(self.quarantine.keys))
        step = step_of(self.table, event)
        if step == NOTHING:
            return
        entry = self._entry(step)
        if self.table.synced:  # before, nobody has a cursor
            self.history.append(entry)
        nodes = self._fold(step)
        if self.table.synced:
            self.reports.entered()
        self._snapshot = ()
        self.signals.wake(None if _concerns_all(step) else nodes)
        self._measure()

    def snapshot(self) -> tuple[bytes, ...]:
        """The messages that bring the whole table, made once for all who ask before it changes."""
        if not self._snapshot:
            table = self.table
            first = Step(network=table.network, network_error=table.network_error, store=table.store)
            self._snapshot = messages(
                list(self._pieces.values()), first=RESET + encode(first), last=SYNCED + self.history.cursor_piece
            )
        return self._snapshot

    async def has(self, lease: Lease, within: float) -> bool:
        """Waits until the table shows what the lease publishes, at most `within` seconds; says whether it does."""
        try:
            async with asyncio.timeout(within):
                while (shown := self.table.leases.get(lease.name)) is None or shown.subnets != lease.subnets:
                    await self.signals.next()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Ends every stream with Unavailable."""
        stopping = Unavailable("the lease service is stopping: reconnect with the last cursor")
        self.signals.stop(stopping)
        self.reports.signals.stop(stopping)

    def _entry(self, step: Step) -> Entry:
        pieces: list[tuple[str, bytes]] = []
        for change in step.changes:
            piece = encode_change(change)
            if isinstance(change, Upserted):
                name = change.lease.name
                self._pieces[name] = piece
            else:
                name = change.name
                del self._pieces[name]
            pieces.append((name, piece))
        return Entry(
            tuple(pieces),
            network=encode(Step(network=step.network)),
            network_error=encode(Step(network_error=step.network_error)),
            store=encode(Step(store=step.store)),
        )

    def _fold(self, step: Step) -> set[str]:
        """Takes the table one step further; returns the nodes that hold or held a lease that changed."""
        leases = self.table.leases
        names = {change.lease.name if isinstance(change, Upserted) else change.name for change in step.changes}
        before = {name: leases.get(name) for name in names}
        self.table.fold(step)
        nodes: set[str] = set()
        for name, old in before.items():
            new = leases.get(name)
            self.holdings.replace(old, new)
            nodes.update(lease.node for lease in (old, new) if lease is not None)
        return nodes

    def _measure(self) -> None:
        metrics.LEASES.set(len(self.table.leases))
        metrics.STORE_CONNECTED.labels(self.store_status.kind).set(self.store_status.connected)
        metrics.HISTORY_STEPS.set(len(self.history))
        metrics.HISTORY_BYTES.set(self.history.bytes)


def _concerns_all(step: Step) -> bool:
    return bool(step.network is not None or step.network_error or step.store is not None or step.synced)
