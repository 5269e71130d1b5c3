"""The log of the lease table's recent changes, for watchers that resume from a cursor. Bounded in size."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from flannelette.services.core.leases.table import Step
from flannelette.services.lease.watch import steps
from flannelette.services.lease.watch.steps import SYNCED
from flannelette.services.runtime.lease.wire import step_to_bytes

_OVERHEAD: Final = 200
"""Bytes that a change takes in memory beside its message, about."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One step as pieces: what has not changed is empty."""

    changes: tuple[tuple[str, bytes], ...]
    """Name of the lease and piece, in order."""
    network: bytes = b""
    network_error: bytes = b""
    store: bytes = b""
    awaited: bytes = b""

    @property
    def size(self) -> int:
        """The bytes of memory that the entry takes, roughly."""
        fixed = len(self.network) + len(self.network_error) + len(self.store) + len(self.awaited) + _OVERHEAD
        return fixed + sum(len(piece) + _OVERHEAD for _, piece in self.changes)


class LogMessage(NamedTuple):
    """The next message for a watcher."""

    message: bytes
    position: int
    """The watcher's position after it."""


class ChangeLog:
    """The last entries, numbered from 1. What one watcher needs is made once for all that need the same."""

    def __init__(self, epoch: str, most_entries: int, most_bytes: int) -> None:
        self.epoch = epoch
        self.last = 0
        """Number of the newest entry."""
        self.bytes = 0
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._entries: dict[int, LogEntry] = {}
        """Entries by number; the oldest comes first."""
        self._made: dict[tuple[int, bool], LogMessage] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def cursor(self) -> str:
        """The cursor of the newest entry."""
        return f"{self.epoch}:{self.last}"

    @property
    def end(self) -> bytes:
        """The piece that ends a snapshot: the table is complete, and this is its cursor."""
        return SYNCED + self._cursor_piece(self.last)

    def append(self, entry: LogEntry) -> None:
        """Adds the newest entry; the oldest go when there are too many. The newest always stays."""
        self.last += 1
        self._entries[self.last] = entry
        self.bytes += entry.size
        self._made.clear()
        while len(self._entries) > 1 and (len(self._entries) > self._most_entries or self.bytes > self._most_bytes):
            self.bytes -= self._entries.pop(next(iter(self._entries))).size

    def number(self, cursor: str) -> int | None:
        """The entry that a cursor names, however long ago; None: of another epoch, or no cursor."""
        epoch, _, number = cursor.partition(":")
        if epoch != self.epoch or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            return None
        return int(number) if int(number) <= self.last else None

    def position(self, cursor: str) -> int | None:
        """The position of this cursor; None: of another epoch, no cursor, or too long ago."""
        number = self.number(cursor)
        return number if number is not None and number >= self.last - len(self._entries) else None

    def since(self, position: int, *, staged: bool = False) -> LogMessage | None:
        """The next message for a watcher that is there, and not at the newest entry; None: it is too far behind.

        It is a step to a later table, not a replay: of several changes of one lease only the last is in it. It
        reaches as far as one message can, so that a slow watcher keeps no more than that in our memory. `staged`:
        without `synced` and cursor, for a watcher whose snapshot is not complete yet.
        """
        if position < self.last - len(self._entries):
            return None
        made = self._made.get((position, staged))
        if made is None:
            made = self._made[position, staged] = self._merged(position, staged)
        return made

    def _merged(self, position: int, staged: bool) -> LogMessage:
        latest: dict[str, bytes] = {}
        network = network_error = store = awaited = b""
        for entry in self._that_fit(position, latest):
            position += 1
            for name, piece in entry.changes:
                latest.pop(name, None)  # the order is that of the last changes
                latest[name] = piece
            if entry.network:
                network, network_error = entry.network, b""
            network_error = entry.network_error or network_error
            store = entry.store or store
            awaited = entry.awaited or awaited
        end = b"" if staged else SYNCED + self._cursor_piece(position)
        return LogMessage(b"".join([*latest.values(), network, network_error, store, awaited, end]), position)

    def _that_fit(self, position: int, latest: dict[str, bytes]) -> Iterator[LogEntry]:
        """The entries after a position, while what they add up to (`latest`) fits into a message; at least one."""
        size = 0
        for number in range(position + 1, self.last + 1):
            entry = self._entries[number]
            more = sum(name not in latest for name, _ in entry.changes)
            size += sum(len(piece) - len(latest.get(name, b"")) for name, piece in entry.changes)
            if latest and (len(latest) + more > steps.MOST_CHANGES or size > steps.MOST_BYTES):
                return
            yield entry

    def _cursor_piece(self, position: int) -> bytes:
        return step_to_bytes(Step(cursor=f"{self.epoch}:{position}"))
