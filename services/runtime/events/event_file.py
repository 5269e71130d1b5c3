"""The events in a file, so that they survive a restart: written in batches, and read strictly."""

import asyncio
import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.limits import nearest_time
from flannelette.services.runtime.events.journal import MOST_NAMED, REMEMBERED, Event, Journal, RecordedEvent, Subject
from flannelette.services.runtime.state import Record, RecordLog, UnreadableState, keep
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_KIND: Final = "events"
_OLDER: Final = b"{"
"""How a line of a release before 0.3 begins: it is the JSON alone."""
_RETRY: Final = 10.0
"""Seconds from a write that has failed to the next one: the next events push out those that are not written."""
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
            await keep(lambda: journal.news(self._written), lambda: self.write(journal), retry=_RETRY)

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
            _filled(epoch),
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


def _filled(text: str) -> str:
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
