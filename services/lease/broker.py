"""The lease table: folds what happens in the store, and keeps it ready to be sent."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Final, NamedTuple

from services.core.choices import NONE, Chosen
from services.core.errors import Unavailable
from services.core.lease import Lease
from services.core.table import Change, Step, StoreStatus, Table, Upserted
from services.lease import encoding, metrics
from services.lease.encoding import RESET, encode, encode_change
from services.lease.history import Entry, History
from services.lease.holdings import Holdings
from services.lease.pieces import Chunk, Pieces
from services.lease.presence import Presence
from services.lease.reports import Reports
from services.lease.signals import Signals
from services.lease.steps import NOTHING, step_of
from services.lease.store import StoreEvent

_MOST_ENTRIES: Final = 20_000
_MOST_BYTES: Final = 16 << 20


class Lost(NamedTuple):
    """A lease that the store has lost."""

    name: str
    since: float
    """On the clock of whoever says so: told anew when it is lost anew."""


class Broker:
    """Keeps `table` equal to the store, and what watchers need (`services.lease.watchers`) beside it.

    Each change is serialised once, whoever watches. What changes nothing, such as a Snapshot after a reconnect that
    equals the table, wakes nobody. Everything runs in one event loop, and nothing but `has` waits.
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
        self.signals = Signals()
        self.reports = Reports(self.history, clock)
        self.presence = presence or Presence()
        self.presence.tell(self.reports)
        self.lost: Mapping[str, Lost] = {}
        """By node: a lease of its that the store has lost and the table keeps."""
        self.choices: Mapping[str, Chosen] = NONE
        """What operators have chosen, by node."""
        self.watchers = 0
        """Open streams."""
        self._pieces = Pieces(self.table.leases)
        self._parts: dict[tuple[str | None, bool], Chunk] = {}
        metrics.LEASES.set_function(lambda: len(self.table.leases))
        metrics.STORE_CONNECTED.labels(kind).set_function(lambda: self.store_status.connected)
        metrics.HISTORY_STEPS.set_function(lambda: len(self.history))
        metrics.HISTORY_BYTES.set_function(lambda: self.history.bytes)

    @property
    def store_status(self) -> StoreStatus:
        """Whether the store answers."""
        assert self.table.store is not None  # noqa: S101 - set from the start, and never cleared
        return self.table.store

    def take(self, event: StoreEvent) -> None:
        """Folds one event, and wakes those whom it concerns."""
        step = step_of(self.table, event)
        if step == NOTHING:
            return
        was_synced = self.table.synced
        names = set(map(_name, step.changes))
        nodes = self._fold(step, names)
        self._pieces.follow(names)
        self._parts.clear()
        if was_synced:  # before, nobody has a cursor
            for entry in self._entries(step):
                self.history.append(entry)
        if self.table.synced:
            self.reports.entered()
        self.signals.wake(None if _concerns_all(step) else nodes)

    def lose(self, lost: Mapping[str, Lost]) -> None:
        """From now on these are lost, and their nodes are told."""
        news = {node for node, what in lost.items() if self.lost.get(node) != what}
        self.lost = lost
        if news:
            self.signals.wake(news)

    def choose(self, choices: Mapping[str, Chosen]) -> None:
        """From now on operators have chosen this, and those whom it concerns are told."""
        if choices != self.choices:
            self.choices = choices
            self.signals.wake(())

    def snapshot(self, after: str | None, begun: int) -> Chunk:
        """The next part of a snapshot: the leases behind one, or the beginning (None). Made once for all who ask.

        It ends with `synced` if no lease is missing and nothing has changed since the snapshot began there.
        """
        is_news = begun != self.history.last
        part = self._parts.get((after, is_news))
        if part is None:
            leases = self._pieces.chunk(after or "")
            head = b"" if after is not None else self._head()
            end = self.history.end if leases.ends and not is_news else b""
            part = self._parts[after, is_news] = Chunk(head + leases.body + end, leases.last, leases.ends)
        return part

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

    def _head(self) -> bytes:
        table = self.table
        return RESET + encode(Step(network=table.network, network_error=table.network_error, store=table.store))

    def _entries(self, step: Step) -> Iterator[Entry]:
        """The step in parts, each no longer than a message; each is made now, as the change may be undone soon."""
        pieces: list[tuple[str, bytes]] = []
        size = 0
        for change in step.changes:
            name, piece = _name(change), encode_change(change)
            if isinstance(change, Upserted):
                self._pieces.keep(name, piece)
            size += len(piece)
            if pieces and (len(pieces) == encoding.MOST_CHANGES or size > encoding.MOST_BYTES):
                yield Entry(tuple(pieces))
                pieces, size = [], len(piece)
            pieces.append((name, piece))
        yield Entry(
            tuple(pieces),
            network=encode(Step(network=step.network)) if step.network else b"",
            network_error=encode(Step(network_error=step.network_error)) if step.network_error else b"",
            store=encode(Step(store=step.store)) if step.store else b"",
        )

    def _fold(self, step: Step, names: Set[str]) -> set[str]:
        """Takes the table one step further; returns the nodes that hold or held a lease that changed."""
        leases = self.table.leases
        before = {name: leases.get(name) for name in names}
        self.table.fold(step)
        nodes: set[str] = set()
        for name, old in before.items():
            new = leases.get(name)
            self.holdings.replace(old, new)
            if old is not None:
                nodes.add(old.node)
            if new is not None:
                nodes.add(new.node)
        return nodes - {""}


def _concerns_all(step: Step) -> bool:
    return bool(step.network is not None or step.network_error or step.store is not None or step.synced)


def _name(change: Change) -> str:
    return change.lease.name if isinstance(change, Upserted) else change.name
