"""A file that a service keeps for its next start: sealed with a checksum, and replaced as a whole."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, Protocol

from flannelette.services.core.conditions import Condition, found
from flannelette.services.runtime.os.atomic_file import replace_bytes, temporary
from flannelette.services.runtime.os.sealed_file import UnreadableState, seal, unseal
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

MODE: Final = 0o600
_LARGEST: Final = 1 << 28
"""Largest size in bytes: that of about a million leases."""
_FLAGS: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""No link is followed and no FIFO waited for, should another program have put one there."""


class ReplacedFile:
    """One file that is replaced as a whole; without a path nothing is kept.

    Every failure costs what the file keeps, and nothing else; it is logged once, and `problem` says it. A file that
    cannot be read is left where it is, and the next write renames it to `NAME.refused`. Not `is_synced`: a power cut
    may cost the file.
    """

    def __init__(self, path: Path | None, *, is_synced: bool = True) -> None:
        self.path = path or Path()
        self.problem = ""
        """Why the file cannot be written; empty: it can, as far as was tried."""
        self._is_synced = is_synced
        self._is_rejected = False
        self._is_kept = path is not None

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

    def put(self, parts: Iterable[bytes]) -> bool:
        """Replaces the file by what is sealed already; returns whether that succeeded.

        Blocks while the disk is busy, if it `is_synced`.
        """
        if not self._is_kept:
            return True
        try:
            if self._is_rejected:
                with suppress(FileNotFoundError):
                    self.path.replace(self.path.with_name(f"{self.path.name}.refused"))
                self._is_rejected = False
            replace_bytes(self.path, parts, MODE, is_synced=self._is_synced)
        except OSError as error:
            self.note(f"cannot write {self.path}: {error.strerror}")
            return False
        self.problem = ""
        return True

    def note(self, problem: str) -> None:
        """Logs why the file cannot be written, once for each reason."""
        if problem != self.problem:
            self.problem = problem
            log.warning("what the next start would need is not kept", reason=problem)


class KeptFile(ReplacedFile):
    """One that is sealed with its kind. `older`: see `unseal`."""

    def __init__(self, path: Path | None, kind: str, *, older: bytes = b"", is_synced: bool = True) -> None:
        super().__init__(path, is_synced=is_synced)
        self._kind = kind
        self._older = older

    def read(self) -> bytes | None:
        """The content, for the start; None: there is none, or none that can be used."""
        self.clean()
        try:
            return unseal(self._kind, read_bytes(self.path), older=self._older) if self._is_kept else None
        except FileNotFoundError:
            return None
        except (OSError, UnreadableState) as error:
            self.reject(error)
            return None

    def write(self, content: Iterable[bytes]) -> bool:
        """Seals the content and replaces the file, as `put`."""
        return self.put(seal(self._kind, content))


class MayFail(Protocol):
    """An object that keeps a file, and says why it cannot."""

    @property
    def problem(self) -> str: ...  # noqa: D102 - see KeptFile


def unwritten(files: Iterable[MayFail]) -> Iterator[Condition]:
    """Condition about the files that a service keeps and cannot write."""
    for reason in sorted({file.problem for file in files} - {""}):
        yield found("service.state-file", reason=f"{reason[:1].upper()}{reason[1:]}")


def read_bytes(path: Path) -> bytes:
    """The content of a file, without following a symbolic link. Raises OSError."""
    with os.fdopen(os.open(path, _FLAGS), "rb") as file:
        return file.read(_LARGEST)
