"""The events in a file, so that they survive a restart: two halves of bounded size, written in batches."""

import asyncio
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Final

from flannelette.services.runtime.events.journal import REMEMBERED, Journal, RecordedEvent
from flannelette.services.runtime.events.record import BadRecord, decode, encode
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

HALF: Final = 512 << 10
"""Bytes of a half; about 2,000 events."""
_WRITE_DELAY: Final = 1.0
"""Seconds from an event to the write: events come in groups."""
_RETRY_DELAY: Final = 10.0
_MODE: Final = 0o600
_FLAGS: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""No link is followed and no FIFO waited for, should another program have put one there."""


class EventFile:
    """NAME.events, and NAME.events.old when the former is full; without a path nothing is stored.

    Every failure costs only the events in the file: the journal goes on in memory, and the reason is logged once.
    What cannot be read is cut off and logged. One process writes at a time, by a lock on `.NAME.events.lock`.
    A batch is handed to the kernel and not synced: a power cut may lose more than a kill does, and costs no more.
    """

    def __init__(self, path: Path | None, kinds: type[Enum], repairs: type[Enum] | None = None) -> None:
        self._path = path
        self._kinds = kinds
        self._repairs = repairs
        self._lock = -1
        self._written = 0
        """Number of the newest event in the file."""
        self.problem = ""
        """Why events are not written; empty: they are."""

    def read(self) -> list[RecordedEvent]:
        """The last events in the file, numbered without a gap. Blocks for some milliseconds: for the start."""
        if self._path is None or not self._path.parent.is_dir():
            return []
        try:
            self._take_lock()
            entries = self._read_half(self._path)
            if len(entries) < REMEMBERED:
                entries = self._read_half(_old(self._path)) + entries
        except OSError as error:
            self._note_problem(error)
            return []
        first = len(entries) - 1
        while first > 0 and entries[first - 1].number == entries[first].number - 1:
            first -= 1
        entries = entries[max(first, 0) :][-REMEMBERED:]
        self._written = entries[-1].number if entries else 0
        return entries

    async def run(self, journal: Journal) -> None:
        """Writes new events, until it is cancelled."""
        while self._path is not None:
            await journal.news(self._written)
            await asyncio.sleep(_RETRY_DELAY if self.problem else _WRITE_DELAY)
            await self.write(journal)

    async def write(self, journal: Journal) -> None:
        """Writes what is new. The event loop is not blocked: a thread waits for the disk."""
        while self._path is not None and self._written < journal.last:
            entries, _ = journal.after(self._written)
            data = b"".join(map(encode, entries))
            if not await _in_thread(self._append, data, self._note_problem):
                return
            self._written = entries[-1].number
            if self.problem:
                self.problem = ""
                log.info("events are kept for a restart again", path=str(self._path))

    async def close(self, journal: Journal) -> None:
        """Writes what is new and frees the lock; for the end of the process, after the job."""
        await self.write(journal)
        self._path = None
        if self._lock >= 0:
            os.close(self._lock)

    def _append(self, data: bytes) -> None:
        assert self._path is not None  # noqa: S101 - write() asks
        if self._take_lock():  # only now, since there was no directory at the start, or another process
            self._rotate()
        for is_new in (False, True):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | _FLAGS, _MODE)
            try:
                size = _size(descriptor)
                if not is_new and size and size + len(data) > HALF:
                    self._rotate()
                    continue
                try:
                    if os.write(descriptor, data) < len(data):
                        raise OSError(0, "the disk is full")
                except OSError:
                    os.ftruncate(descriptor, size)
                    raise
                return
            finally:
                os.close(descriptor)

    def _rotate(self) -> None:
        assert self._path is not None  # noqa: S101 - as above
        with suppress(FileNotFoundError):
            self._path.replace(_old(self._path))

    def _take_lock(self) -> bool:
        """Whether the lock was taken by this call. Raises OSError: another process has it, or no lock can be made."""
        assert self._path is not None  # noqa: S101 - as above
        if self._lock >= 0:
            return False
        name = self._path.with_name(f".{self._path.name}.lock")
        descriptor = os.open(name, os.O_RDONLY | os.O_CREAT | _FLAGS, _MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            raise OSError(error.errno, "another process writes its events there") from None
        self._lock = descriptor
        return True

    def _read_half(self, path: Path) -> list[RecordedEvent]:
        """The events of a file up to the first line that is none; there the file is cut."""
        try:
            descriptor = os.open(path, os.O_RDWR | _FLAGS)
        except FileNotFoundError:
            return []
        except OSError as error:
            self._discard(path, error.strerror)
            return []
        entries, good = list[RecordedEvent](), 0
        with os.fdopen(descriptor, "rb") as file:
            try:
                size = _size(descriptor)
                while good < size and (line := file.readline(2 * HALF)):
                    if not line.endswith(b"\n") or good + len(line) > 2 * HALF:
                        raise BadRecord("the end of the file is no whole line")
                    entry = decode(line, self._kinds, self._repairs)
                    if entries and entry.number <= entries[-1].number:
                        raise BadRecord("the numbers of the events do not rise")
                    entries.append(entry)
                    good += len(line)
            except BadRecord as error:
                log.warning("events that cannot be read are cut off", path=str(path), at=good, reason=str(error))
                os.ftruncate(descriptor, good)
            except OSError as error:
                self._discard(path, error.strerror)
        return entries

    def _discard(self, path: Path, reason: str | None) -> None:
        """Removes what is no file of events, such as a link or a FIFO."""
        log.warning("events cannot be read, and begin anew", path=str(path), reason=reason)
        with suppress(OSError):
            path.unlink()

    def _note_problem(self, error: Exception) -> None:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        problem = f"cannot write {self._path}: {reason}"
        if problem != self.problem:
            self.problem = problem
            log.warning("events are not kept for a restart", path=str(self._path), reason=reason)


async def _in_thread(function: Callable[[bytes], None], data: bytes, failed: Callable[[Exception], None]) -> bool:
    try:
        await asyncio.to_thread(function, data)
    except (OSError, RuntimeError) as error:  # RuntimeError: no thread is left
        failed(error)
        return False
    return True


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _size(descriptor: int) -> int:
    """Raises OSError: it is no file."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "it is not a file")
    return found.st_size
