"""Events of a service: the last few thousand in memory, the file that keeps them, and the calls that tell them."""

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TypeVar

from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.frozen import frozen
from flannelette.services.core.limits import LONGEST_NAME, LONGEST_REASON, nearest_time, unix_time
from flannelette.services.runtime.state import Record, RecordLog, UnreadableState, keep
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

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


@frozen
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


_KIND: Final = "events"
_OLDER: Final = b"{"
"""How a line of a release before 0.3 begins: it is the JSON alone."""
_LARGEST: Final = 1 << 53


class EventFile:
    """NAME.events, and NAME.events.old when the former is full; without a path nothing is stored.

    Every failure costs only the events in the file: the journal goes on in memory, and the reason is logged once.
    What cannot be read is passed over and logged. A batch is not synced: a power cut may lose more than a kill does,
    and costs no more.
    """

    def __init__(self, path: Path | None, kinds: type[Enum], repairs: type[Enum] | None = None) -> None:
        self._log = RecordLog(path, _KIND, _OLDER) if path is not None else None
        self._kinds = kinds
        self._repairs = repairs
        self._written = 0
        """Number of the newest event in the file."""
        self.problem = ""
        """Why events are not written; empty: they are."""

    def read(self) -> list[RecordedEvent]:
        """The last events in the file, with rising numbers. Blocks for some milliseconds: for the start."""
        if self._log is None:
            return []
        entries = list[RecordedEvent]()
        try:
            if not self._log.path.parent.is_dir():
                return []
            records, unreadable = self._log.read(REMEMBERED)
            for record in records:
                try:
                    entry = decode(record, self._kinds, self._repairs)
                    if entries and entry.number <= entries[-1].number:
                        raise UnreadableState("the numbers of the events do not rise")
                    entries.append(entry)
                except UnreadableState as error:
                    unreadable.append(str(error))
            if unreadable:
                log.warning(
                    "events that cannot be read are left out",
                    path=str(self._log.path),
                    count=len(unreadable),
                    first=unreadable[0],
                )
            if unreadable or not all(record.name for record in records):  # or it is of a release before 0.3
                self._log.rewrite(map(encode, entries))
        except OSError as error:
            self._note_problem(error)
        self._written = entries[-1].number if entries else 0
        return entries[-REMEMBERED:]

    async def run(self, journal: Journal) -> None:
        """Writes new events, until it is cancelled."""
        if self._log is not None:
            await keep(lambda: journal.news(self._written), lambda: self.write(journal))

    async def write(self, journal: Journal) -> bool:
        """Writes what is new; returns whether that succeeded. A thread waits for the disk."""
        while self._log is not None and self._written < journal.last:
            entries, _ = journal.after(self._written)
            if not await self._append(self._log, entries):
                return False
            self._written = entries[-1].number
            if self.problem:
                self.problem = ""
                log.info("events are kept for a restart again", path=str(self._log.path))
        return True

    async def close(self, journal: Journal) -> None:
        """Writes what is new and frees the lock; for the end of the process, after the job."""
        await self.write(journal)
        if self._log is not None:
            self._log.close()
            self._log = None

    async def _append(self, to: RecordLog, entries: Sequence[RecordedEvent]) -> bool:
        try:
            await asyncio.to_thread(to.append, list(map(encode, entries)))
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread is left
            self._note_problem(error)
            return False
        return True

    def _note_problem(self, error: Exception) -> None:
        assert self._log is not None  # noqa: S101 - who fails has a file
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        problem = f"cannot write {self._log.path}: {reason}"
        if problem != self.problem:
            self.problem = problem
            log.warning("events are not kept for a restart", path=str(self._log.path), reason=reason)


def encode(entry: RecordedEvent) -> Record:
    """A record with the position as its name. What is at its default is left out."""
    event = entry.event
    row: dict[str, object] = {
        "position": entry.position, "time": entry.time, "kind": event.kind.name, "what": event.what
    }  # fmt: skip
    optional = {
        "cause": event.cause,
        "seconds": event.seconds,
        "cursor": entry.cursor,
        "subjects": event.subjects,
        "count": event.subject_count,
        "objects": event.objects,
        "repair": event.repair.name if event.repair else "",
    }
    row.update((name, value) for name, value in optional.items() if value)
    return Record.of_json(entry.position, row)


def decode(record: Record, kinds: type[Enum], repairs: type[Enum] | None) -> RecordedEvent:
    """The event: the record may hold anything. Raises UnreadableState."""
    try:
        row = json.loads(record.value)
        epoch, _, number = _text(row["position"]).partition(":")
        repair = _text(row.get("repair", ""))
        return RecordedEvent(
            _not_empty(epoch),
            _count(int(number)),
            nearest_time(_seconds(row["time"])),
            _text(row.get("cursor", "")),
            Event(
                kinds[_text(row["kind"])],
                _text(row["what"]),
                _text(row.get("cause", "")),
                _seconds(row.get("seconds", 0.0)),
                tuple(Subject(_text(name), _text(of)) for name, of in row.get("subjects", ())[:MOST_NAMED]),
                _count(row.get("count", 0)) % (1 << 32),
                _count(row.get("objects", 0)) % (1 << 32),
                repairs[repair] if repair and repairs else None,
            ),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise UnreadableState(f"{type(error).__name__}: {error}") from None


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("no text")
    value.encode()  # half of a surrogate pair, which JSON may have and no message
    return value


def _not_empty(text: str) -> str:
    if not text:
        raise ValueError("no position")
    return text


def _seconds(value: Any) -> float:
    if not (isinstance(value, float | int) and 0 <= value < _LARGEST):
        raise ValueError("no time")
    return float(value)


def _count(value: Any) -> int:
    if not (isinstance(value, int) and 0 <= value < _LARGEST):
        raise ValueError("no number")
    return value


M = TypeVar("M")


class Reading(Generic[M]):
    """How far one call has come. Raises InvalidInput for what it cannot look for.

    `request` is a WatchEventsRequest of any service, `subject` the name that events shall concern, `message` makes a
    WatchEventsResponse of the service with what is its own.
    """

    def __init__(self, journal: Journal, request: Any, subject: str, message: Callable[[RecordedEvent], M]) -> None:
        self._journal = journal
        self._number = journal.number_of(request.after)
        self._since = unix_time(request.since_time, "since_time") if request.HasField("since_time") else 0.0
        self._kinds = frozenset(request.kinds)
        self._subject = subject
        self._message = message
        self._missed = 0

    @property
    def is_complete(self) -> bool:
        """Whether the journal has no later event."""
        return self._number >= self._journal.last

    def take(self) -> list[M]:
        """The next events that are wanted, some at a time. What is missed is told with the next one of these."""
        entries, missed = self._journal.after(self._number)
        self._number = entries[-1].number if entries else self._number
        self._missed += missed
        messages = [_filled(self._message(entry), entry) for entry in entries if self._is_wanted(entry)]
        if messages:
            messages[0].missed, self._missed = self._missed, 0
        return messages

    async def news(self) -> None:
        """Returns once there is more."""
        await self._journal.news(self._number)

    def _is_wanted(self, entry: RecordedEvent) -> bool:
        is_of_kind = not self._kinds or entry.event.kind.value in self._kinds
        is_about = not self._subject or entry.event.concerns(self._subject)
        return is_of_kind and is_about and entry.time >= self._since


async def watch(reading: Reading[M], stopping: asyncio.Event, *, follows: bool, end: str) -> AsyncIterator[M]:
    """What there is, then, if it `follows`, what comes. Raises Unavailable(end) when we stop."""
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        while not stopped.done():
            for message in reading.take():
                yield message
            if not reading.is_complete:
                continue
            if not follows:
                return
            await either(stopped, reading.news())
    finally:
        stopped.cancel()
    raise Unavailable(end)


async def either(stopped: asyncio.Future[Any], waits: Coroutine[Any, Any, object], most: float | None = None) -> None:
    """Returns when one of them is done, or after so many seconds; nothing waits on, also if the caller has left."""
    task = asyncio.ensure_future(waits)
    try:
        await asyncio.wait((stopped, task), return_when=asyncio.FIRST_COMPLETED, timeout=most)
    finally:
        task.cancel()


def _filled(message: Any, entry: RecordedEvent) -> Any:
    """The message with the fields that those of all services have. The values of kinds are those of the .proto."""
    event = entry.event
    message.time.FromMicroseconds(round(entry.time * 1e6))
    message.what, message.cause, message.kind = event.what, event.cause, event.kind.value
    message.microseconds = round(event.seconds * 1e6)
    message.position, message.cursor = entry.position, entry.cursor
    return message
