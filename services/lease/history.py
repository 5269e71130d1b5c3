"""The recent steps of the table, for watchers that are a little behind: bounded in number and in bytes."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final

from services.core.table import Step
from services.lease.encoding import SYNCED, encode, messages

_OVERHEAD: Final = 200
"""About what a change takes in memory beside its bytes."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One step as pieces: what has not changed is empty."""

    changes: tuple[tuple[str, bytes], ...]
    """Name of the lease and piece, in order."""
    network: bytes = b""
    network_error: bytes = b""
    store: bytes = b""

    @property
    def size(self) -> int:
        """About what it takes in memory."""
        fixed = len(self.network) + len(self.network_error) + len(self.store) + _OVERHEAD
        return fixed + sum(len(piece) + _OVERHEAD for _, piece in self.changes)


class History:
    """The last entries, numbered from 1. What one watcher needs is made once for all that need the same."""

    def __init__(self, epoch: str, most_entries: int, most_bytes: int) -> None:
        self.epoch = epoch
        self.last = 0
        """Number of the newest entry."""
        self.bytes = 0
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._entries: deque[Entry] = deque()
        self._made: dict[int, tuple[bytes, ...]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def cursor(self) -> str:
        """Where a watcher is that has everything."""
        return f"{self.epoch}:{self.last}"

    @property
    def cursor_piece(self) -> bytes:
        """The same, as a piece."""
        return encode(Step(cursor=self.cursor))

    def append(self, entry: Entry) -> None:
        """Adds the newest entry; the oldest go when there are too many. The newest always stays."""
        self._entries.append(entry)
        self.last += 1
        self.bytes += entry.size
        self._made.clear()
        while len(self._entries) > 1 and (len(self._entries) > self._most_entries or self.bytes > self._most_bytes):
            self.bytes -= self._entries.popleft().size

    def number(self, cursor: str) -> int | None:
        """The entry that a cursor names, however long ago; None: of another epoch, or no cursor."""
        epoch, _, number = cursor.partition(":")
        if epoch != self.epoch or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            return None
        return int(number) if int(number) <= self.last else None

    def position(self, cursor: str) -> int | None:
        """Where a watcher with this cursor stands; None: of another epoch, no cursor, or too long ago."""
        number = self.number(cursor)
        return number if number is not None and number >= self.last - len(self._entries) else None

    def since(self, position: int) -> tuple[bytes, ...] | None:
        """The messages that take a watcher from there to the newest entry; None: it is too far behind.

        It is one step, the difference of two tables, not a replay: of several changes of one lease only the last
        is in it.
        """
        if position == self.last:
            return ()
        if position < self.last - len(self._entries):
            return None
        made = self._made.get(position)
        if made is None:
            start = len(self._entries) - (self.last - position)
            made = self._made[position] = _merged(islice(self._entries, start, None), self.cursor_piece)
        return made


def _merged(entries: Iterable[Entry], cursor_piece: bytes) -> tuple[bytes, ...]:
    latest: dict[str, bytes] = {}
    network = network_error = store = b""
    for entry in entries:
        for name, piece in entry.changes:
            latest.pop(name, None)  # the order is that of the last changes
            latest[name] = piece
        if entry.network:
            network, network_error = entry.network, b""
        network_error = entry.network_error or network_error
        store = entry.store or store
    return messages(list(latest.values()), each=SYNCED, last=network + network_error + store + cursor_piece)
