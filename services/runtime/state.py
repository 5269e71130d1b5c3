"""What services keep on disk for their next start: files of records, each with a checksum (ADR 63).

A file has a record a line: checksum, name and value, with a space between. The first line says what the file is of,
the version of this format, how many records follow, and their checksum as a whole: if that is right, none is looked
at alone. There are two ways to write: `RecordFile` is replaced as a whole, `RecordLog` is appended to; `keep` is the
loop of all writers. A record that the disk has damaged is refused by its name, and the others are kept.
"""

import asyncio
import errno
import fcntl
import json
import os
import stat
from binascii import a2b_base64, b2a_base64
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from io import BytesIO
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Final, NamedTuple, Protocol, Self, TypeAlias
from zlib import crc32

from flannelette.services.core.conditions import Condition, found
from flannelette.services.runtime.os.files import replace_bytes, temporary
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

MODE: Final = 0o600
FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""No link is followed and no FIFO waited for, should another program have put one there."""
HALF: Final = 512 << 10
"""Bytes of a half of a log."""
_VERSION: Final = 2
"""Version of this format; 1 was that of releases before 0.3, see older_state.py."""
_LARGEST: Final = 1 << 28
"""Largest size of a file in bytes: that of about a million leases."""
_LARGEST_HALF: Final = 4 * HALF
"""The same of a half of a log: what both had may be written into one, and a half that is full takes one batch."""
_HEAD: Final = "file"
_MOST_TOLD: Final = 10
"""Names of damaged records in one line of the log."""
_MOST_DAMAGED: Final = 50_000
"""Damaged records of a file that is read; with more it is none, and its lines take no memory."""
_NO_FILE: Final = "the file is damaged, or another kind of file"
_LONGEST_COUNT: Final = 16
_PORTION: Final = 250
"""Records that are packed in about a millisecond."""
_LONGEST_NAME: Final = 256
_PLAIN: Final = bytes(byte if 0x20 < byte < 0x7F else ord("?") for byte in range(256))
_DELAY: Final = 1.0
"""Seconds from a change to the write: changes come in groups."""
_RETRY: Final = 10.0
"""Seconds from a write that has failed to the next one, at least: the disk may have room again."""
_TO_JSON: Final = json.JSONEncoder(separators=(",", ":")).encode


class UnreadableState(Exception):
    """The file or the record is damaged, or not the one that is meant; the message says why."""


class OtherVersion(UnreadableState):
    """The file is of a newer release."""


class Record(NamedTuple):
    """One named value. The name finds it and tells it in logs; characters that are not printable ASCII become `?`."""

    name: str
    value: bytes
    """A value without a line feed."""

    @classmethod
    def of_json(cls, name: str, content: Any) -> Self:
        """A record with a value of JSON."""
        return cls(name, _TO_JSON(content).encode())

    @classmethod
    def of_bytes(cls, name: str, content: bytes) -> Self:
        """A record with a value of any bytes, in base64."""
        return cls(name, b2a_base64(content, newline=False))

    def json(self) -> Any:
        """The value of `of_json`. Raises UnreadableState."""
        try:
            return json.loads(self.value)
        except (ValueError, RecursionError) as error:
            raise UnreadableState(f"the record {self.name} cannot be read: {error}") from None

    def bytes(self) -> bytes:
        """The value of `of_bytes`. Raises UnreadableState."""
        try:
            return a2b_base64(self.value)
        except ValueError as error:
            raise UnreadableState(f"the record {self.name} cannot be read: {error}") from None


class Contents(NamedTuple):
    """What a file holds."""

    records: list[Record]
    damaged: list[str]
    """What was refused: the name of a record, as far as it can be read, and its line."""


Older = Callable[[bytes], Iterable[Record] | None]
"""Reads a file of a release before 0.3; None: it is not one. Raises UnreadableState."""


Named: TypeAlias = tuple[str, bytes]
"""A record that is about to be written."""


def pack(kind: str, records: Iterable[Named]) -> list[bytes]:
    """The lines of these records, for a file of this kind."""
    salt, lines = _salt(kind), []
    for name, value in records:
        body = name.encode("ascii", "replace")[:_LONGEST_NAME].translate(_PLAIN) + b" " + value
        lines.append(b"%08x %b\n" % (crc32(body, salt), body))
    return lines


async def _pack_slowly(kind: str, records: Iterator[Named]) -> list[bytes]:
    """The same in portions, between which the other tasks run."""
    lines = list[bytes]()
    while portion := pack(kind, islice(records, _PORTION)):
        lines += portion
        await asyncio.sleep(0)
    return lines


def sealed(kind: str, lines: list[bytes]) -> list[bytes]:
    """The bytes, in parts, of a file that is replaced as a whole."""
    rest = b"".join(lines)
    head = f"{_HEAD} {kind} {_VERSION} {len(lines)} {crc32(rest):08x}".encode()
    return [b"%08x %b\n" % (crc32(head), head), rest]


def unpack(kind: str, data: bytes, older: bytes = b"") -> Contents:
    """What a file of this kind holds. Raises UnreadableState for one that has nothing of it.

    A line that begins with `older`, if that is given, is a record without a name.
    """
    first, _, rest = data.partition(b"\n")
    head = _record(first, 0)
    said = head.value.split(b" ") if head is not None and head.name == _HEAD else []
    if said and said[0] != kind.encode():
        raise UnreadableState(f"it is a file of another kind, {said[0].decode('ascii', 'replace')!a}")
    if said and said[1:2] != [b"%d" % _VERSION]:
        raise OtherVersion("another version of this service has written the file")
    count = rest.count(b"\n") + (not rest.endswith(b"\n") and bool(rest))
    if said[2:] == [b"%d" % count, b"%08x" % crc32(rest)]:
        parts = (line.split(b" ", 2) for line in BytesIO(rest))
        with suppress(ValueError):  # a line that nobody writes
            return Contents([Record(name.decode("ascii", "replace"), value[:-1]) for _, name, value in parts], [])
    salt, contents = _salt(kind), Contents([], [])
    for number, text in enumerate(BytesIO(rest if said else data), 1 + bool(said)):
        line = text.removesuffix(b"\n")
        record = Record("", line) if older and line.startswith(older) else _record(line, salt)
        if record is None:
            contents.damaged.append(_where(number, line))
        else:
            contents.records.append(record)
        if len(contents.damaged) > _MOST_DAMAGED:
            raise UnreadableState(_NO_FILE)
    if not (said or contents.records):
        raise UnreadableState(_NO_FILE)
    is_counted = said[2:] and said[2].isdigit() and len(said[2]) < _LONGEST_COUNT
    if is_counted and (missing := int(said[2]) - count) > 0:
        contents.damaged.append(f"{missing} at the end, which are missing")
    elif said and not contents.damaged:  # each record is right, and the whole is not
        contents.damaged.append("the first line")
    return contents


class RecordFile:
    """A file that is replaced as a whole; without a path nothing is kept.

    Every failure costs what the file keeps, and nothing else; it is logged once, and `problem` says it. A file with
    anything that cannot be read is left where it is, and the next write renames it to `NAME.refused`. Not
    `is_synced`: a power cut may cost the file. `older` reads what a release before 0.3 has left; the next write
    replaces it.
    """

    def __init__(self, path: Path | None, kind: str, *, older: Older | None = None, is_synced: bool = True) -> None:
        self.path = path or Path()
        self.kind = kind
        self.problem = ""
        """Why the file cannot be written; empty: it can, as far as was tried."""
        self._older = older
        self._is_synced = is_synced
        self._is_rejected = False
        self._is_older = False
        self._is_kept = path is not None
        self._writing = Lock()

    @property
    def is_whole(self) -> bool:
        """Whether the file was read without damage, and needs not be written again in this form."""
        return not (self._is_rejected or self._is_older)

    def read(self) -> list[Record]:
        """The records, for the start; none if there are none that can be used."""
        try:
            return self.load()
        except FileNotFoundError:
            return []
        except (OSError, UnreadableState) as error:
            self.reject(error)
            return []

    def load(self) -> list[Record]:
        """The same. Raises OSError and UnreadableState for a file that cannot be used."""
        if not self._is_kept:
            return []
        self.clean()
        records, damaged = self._contents(read_bytes(self.path))
        if damaged:
            self._is_rejected = True
            log.error("records of the state file are damaged, and not used", **_damage(self.path, damaged))
        return records

    def write(self, records: Iterable[Named]) -> bool:
        """Replaces the file; returns whether that succeeded. Blocks while the disk is busy, if it `is_synced`."""
        return self.put(pack(self.kind, records))

    async def write_slowly(self, records: Iterator[Named]) -> bool:
        """The same while other tasks run: in portions, and a thread waits for the disk."""
        return await self._in_thread(partial(self.put, await _pack_slowly(self.kind, records)))

    def put(self, lines: list[bytes]) -> bool:
        """Replaces the file by records that are packed already, as `write`."""
        if not self._is_kept:
            return True
        try:
            with self._writing:
                refused = self.path.with_name(f"{self.path.name}.refused") if self._is_rejected else None
                replace_bytes(self.path, sealed(self.kind, lines), MODE, is_synced=self._is_synced, former=refused)
        except OSError as error:
            self.note(f"cannot write {self.path}: {error.strerror}")
            return False
        self.problem, self._is_rejected, self._is_older = "", False, False
        return True

    async def confirm(self) -> bool:
        """Says by the file's time that its content is true now; returns whether that succeeded."""
        return await self._in_thread(self.touch)

    def touch(self) -> bool:
        """The same. Blocks: not for the event loop."""
        try:
            os.utime(self.path)
        except OSError as error:
            self.note(f"cannot write {self.path}: {error.strerror}")
            return False
        return True

    def clean(self) -> None:
        """Removes what a process has left that was killed while it wrote."""
        if self._is_kept:
            with suppress(OSError):
                temporary(self.path).unlink(missing_ok=True)

    def reject(self, error: Exception) -> None:
        """The content cannot be used: logs it, and the next write renames the file."""
        self._is_rejected = True
        reason = error.strerror if isinstance(error, OSError) else str(error)
        log.error("the state file is not used, and will be renamed", path=str(self.path), reason=reason)

    def note(self, problem: str) -> None:
        """Logs why the file cannot be written, once for each reason."""
        if problem != self.problem:
            self.problem = problem
            log.warning("what the next start would need is not kept", reason=problem)

    async def _in_thread(self, call: Callable[[], bool]) -> bool:
        try:
            return await asyncio.to_thread(call)
        except (OSError, RuntimeError) as error:  # for example, no descriptor or thread is left
            self.note(f"cannot write {self.path} now: {error}")
            return False

    def _contents(self, data: bytes) -> Contents:
        try:
            return unpack(self.kind, data)
        except UnreadableState:
            if self._older is None or (older := self._older(data)) is None:
                raise
            self._is_older = True
            return Contents(list(older), [])


class RecordLog:
    """Records that are appended: NAME, and NAME.old when the former is full. Raises OSError where it says so.

    One process writes at a time, by a lock on `.NAME.lock`. A batch is handed to the kernel and not synced: a power
    cut may lose more than a kill does. `older`: how the lines of releases before 0.3 begin, see `unpack`.
    """

    def __init__(self, path: Path, kind: str, older: bytes) -> None:
        self.path = path
        self._kind = kind
        self._older = older
        self._lock = -1

    def read(self, most: int) -> Contents:
        """The records, the oldest first; the half before only if this one has fewer than `most`. Raises OSError."""
        self._take_lock()
        contents = self._half(self.path)
        if len(contents.records) < most:
            before = self._half(_old(self.path))
            contents = Contents(before.records + contents.records, before.damaged + contents.damaged)
        return contents

    def rewrite(self, records: Iterable[Record]) -> None:
        """Replaces everything by these records. Raises OSError."""
        replace_bytes(self.path, pack(self._kind, records), MODE, is_synced=False)
        _old(self.path).unlink(missing_ok=True)

    def append(self, records: Iterable[Record]) -> None:
        """Appends a batch, all or nothing. Raises OSError."""
        data = b"".join(pack(self._kind, records))
        if self._take_lock():  # only now, since there was no directory at the start, or another process
            self._rotate()
        for is_new in (False, True):
            descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | FLAGS, MODE)
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

    def close(self) -> None:
        """Frees the lock for other processes."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def _rotate(self) -> None:
        with suppress(FileNotFoundError):
            self.path.replace(_old(self.path))

    def _take_lock(self) -> bool:
        """Whether the lock was taken by this call. Raises OSError: another process has it, or no lock can be made."""
        if self._lock >= 0:
            return False
        try:
            self._lock = locked(self.path.with_name(f".{self.path.name}.lock"))
        except BlockingIOError as error:
            raise OSError(error.errno, "another process writes there") from None
        return True

    def _half(self, path: Path) -> Contents:
        try:
            data = read_bytes(path, _LARGEST_HALF)
            contents = unpack(self._kind, data, self._older) if data else Contents([], [])
            if data and not data.endswith(b"\n"):  # a kill has torn the last line, to which nothing may be appended
                contents.damaged.append("the end")
        except FileNotFoundError:
            return Contents([], [])
        except UnreadableState as error:
            return Contents([], [str(error)])
        except OSError as error:  # a link or a FIFO
            log.warning("the file cannot be read, and begins anew", path=str(path), reason=error.strerror)
            path.unlink()
            return Contents([], [])
        return contents


async def keep(
    news: Callable[[], Awaitable[object]],
    write: Callable[[], Awaitable[bool]],
    *,
    pause: Callable[[], float] = lambda: 0.0,
    every: float | None = None,
    urgent: asyncio.Event | None = None,
) -> None:
    """Keeps a file current until it is cancelled; who stops the service calls `write` once more.

    `news` returns while there is something to write; a second later `write` writes it, and says whether that
    succeeded: if not, it is called again some seconds later. From one write to the next one it is at least `pause`
    seconds, unless something is `urgent`, and at most about `every`.
    """
    urgent, is_written = urgent or asyncio.Event(), True
    while True:
        if is_written:
            with suppress(TimeoutError):
                await asyncio.wait_for(news(), every)
        await asyncio.sleep(_DELAY)
        urgent.clear()
        is_written = await write()
        with suppress(TimeoutError):
            await asyncio.wait_for(urgent.wait(), pause() if is_written else max(pause(), _RETRY))


class MayFail(Protocol):
    """An object that keeps a file, and says why it cannot."""

    @property
    def problem(self) -> str: ...  # noqa: D102 - see RecordFile


def unwritten(files: Iterable[MayFail]) -> Iterator[Condition]:
    """Condition about the files that a service keeps and cannot write."""
    for reason in sorted({file.problem for file in files} - {""}):
        yield found("service.state-file", reason=f"{reason[:1].upper()}{reason[1:]}")


def locked(path: Path) -> int:
    """Locks a file for this process, and makes it; returns its descriptor. The kernel frees it with the process.

    Raises BlockingIOError: another process has it. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | FLAGS, MODE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path, most: int = _LARGEST) -> bytes:
    """The content of a file, without following a symbolic link. Raises OSError, also for no file, or a larger one."""
    with os.fdopen(os.open(path, os.O_RDONLY | FLAGS), "rb") as file:
        if (size := _size(file.fileno())) > most:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        return file.read(size)


@cache
def _salt(kind: str) -> int:
    """Checksums begin with it: a record of another kind, or of another version of this format, is none here."""
    return crc32(f"{kind} {_VERSION}".encode())


def _record(line: bytes, salt: int) -> Record | None:
    checksum, _, body = line.partition(b" ")
    if checksum != b"%08x" % crc32(body, salt):
        return None
    name, _, value = body.partition(b" ")
    return Record(name.decode("ascii", "replace"), value)


def _where(number: int, line: bytes) -> str:
    name = line.partition(b" ")[2].partition(b" ")[0][:_LONGEST_NAME].translate(_PLAIN).decode()
    return f"{name or '?'} (line {number})"


def _damage(path: Path, damaged: list[str]) -> dict[str, object]:
    return {"path": str(path), "records": damaged[:_MOST_TOLD], "count": len(damaged)}


def _old(path: Path) -> Path:
    return path.with_name(f"{path.name}.old")


def _size(descriptor: int) -> int:
    """Raises OSError: it is no file."""
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is not a file")
    return status.st_size
