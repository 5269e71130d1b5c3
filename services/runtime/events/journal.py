"""The last few thousand events of a service: what was done, why, and how long it took."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, NamedTuple

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.limits import LONGEST_NAME, LONGEST_REASON

REMEMBERED: Final = 4096
"""Events. With the names in them usually below 1 KiB each; see Event.bounded."""
MOST_NAMED: Final = 8
"""Subjects that one event names, and that change together and still get an event each."""
_AT_ONCE: Final = 64
_MOST_DIGITS: Final = 15
"""Digits of the number in a position."""


class Subject(NamedTuple):
    """A lease and its node, or a chain and its address family."""

    name: str
    of: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """A record of what a service did, decided or found."""

    kind: Enum
    """The kind, one of the service's own."""
    what: str
    cause: str = ""
    seconds: float = 0.0
    """Seconds from the moment the cause was known to the end of it; 0: not measured."""
    subjects: tuple[Subject, ...] = ()
    """The subjects that it concerns; only the first ones, if there are many."""
    subject_count: int = 0
    objects: int = 0
    """Kernel objects, rules or leases that were changed."""
    repair: Enum | None = None
    """The cause of a repair."""

    def concerns(self, name: str) -> bool:
        """Whether it may concern the subject of this name: it names it, or not all of its subjects."""
        return self.subject_count > len(self.subjects) or any(name in subject for subject in self.subjects)

    def bounded(self) -> "Event":
        """Returns the event with its texts cut off: keys of a store and data of leases, which they quote, may be
        megabytes.
        """
        names = tuple(Subject(each.name[:LONGEST_NAME], each.of[:LONGEST_NAME]) for each in self.subjects)
        return replace(self, what=self.what[:LONGEST_REASON], cause=self.cause[:LONGEST_REASON], subjects=names)


class RecordedEvent(NamedTuple):
    """An event in its place. A tuple, which is made in a third of the time of a frozen dataclass."""

    epoch: str
    """The epoch of the process that has recorded it."""
    number: int
    """Counts from 1, across restarts as far as they are known."""
    time: float
    """Unix time, by the clock of then."""
    cursor: str
    """The cursor of the leases that were known."""
    event: Event

    @property
    def position(self) -> str:
        """Position from which a reader resumes after the event."""
        return f"{self.epoch}:{self.number}"


class Journal:
    """A ring buffer. A slow reader misses the oldest entries, and delays no other reader."""

    def __init__(
        self,
        size: int = REMEMBERED,
        clock: Callable[[], float] = time.time,
        earlier: Sequence[RecordedEvent] = (),
    ) -> None:
        """`earlier` has the last entries of the processes before; a damaged file makes gaps in their numbers."""
        self.epoch = secrets.token_hex(4)
        """The epoch of this process."""
        self.last = earlier[-1].number if earlier else 0
        """Number of the newest entry."""
        self.cursor = ""
        """The cursor of the leases that are known now."""
        self._oldest = earlier[0].number if earlier else 1
        self._ends = {entry.epoch: entry.number for entry in earlier}
        """The last number of each process before."""
        self._ring: list[RecordedEvent | None] = [None] * size
        for entry in earlier[-size:]:
            self._ring[entry.number % size] = entry
        self._clock = clock
        self._news = asyncio.Event()

    def note(self, event: Event) -> None:
        """Remembers, and wakes who waits. Never waits itself."""
        self.last += 1
        self._ring[self.last % len(self._ring)] = RecordedEvent(
            self.epoch, self.last, self._clock(), self.cursor, event.bounded()
        )
        if not self._news.is_set():
            self._news.set()

    def after(self, number: int) -> tuple[list[RecordedEvent], int]:
        """The next entries after that one, some at a time, and how many before them are forgotten already."""
        first = max(number + 1, self.last + 1 - len(self._ring), self._oldest)
        entries = list[RecordedEvent]()
        for each in range(first, self.last + 1):
            entry = self._ring[each % len(self._ring)]
            if entry is not None and entry.number == each and len(entries) < _AT_ONCE:
                entries.append(entry)
            elif entries:  # what a damaged file lacks is counted with those that follow
                break
        return entries, (entries[0].number if entries else self.last + 1) - number - 1

    def number_of(self, position: str) -> int:
        """The number after which a reader resumes; 0, before everything, for a process that is not known.

        What an earlier process has told and not written before it was killed has no place here: its readers resume
        with the next process. Raises InvalidInput for what is no position.
        """
        epoch, _, number = position.partition(":")
        if position and not (epoch and number.isdecimal() and len(number) <= _MOST_DIGITS):
            raise InvalidInput(f"{position!r} is not a position: give the `position` of an event, or leave it empty")
        end = self.last if epoch == self.epoch else self._ends.get(epoch, 0)
        return min(int(number), end) if end else 0

    async def news(self, number: int) -> None:
        """Returns once there is an entry after that one."""
        while self.last <= number:
            self._news.clear()
            await self._news.wait()


def note_readiness(journal: Journal, kind: Enum, ready: bool, reasons: Sequence[str]) -> None:
    """The service became ready, or is no longer ready, for these reasons."""
    journal.note(Event(kind, "ready" if ready else "not ready", "; ".join(reasons)))
