"""The file `SERVICE.state` in --state-dir: locked by one process, and replaced atomically."""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Final, Self

from services.core.limits import nearest_time
from services.runtime.cache.node_state import NodeState, decode
from services.runtime.os.atomic_file import replace_bytes
from services.runtime.os.sealed_file import UnreadableState
from services.runtime.telemetry.logs import get_logger

log = get_logger()

_MODE: Final = 0o600
_LARGEST: Final = 1 << 28
"""Bytes; about a million leases."""


class StateFile:
    """The file of the cached state. Without a usable directory nothing is stored, and the reason is logged once.

    The file is locked while this process lives: of two dataplanes with the same directory, the second stores and
    reads nothing, because the first may run in another network namespace. Different services may share a directory.
    """

    def __init__(self, directory: str, service: str, machine: str = "") -> None:
        self.service = service
        self.machine = machine
        """The token of this machine: the state of another one is refused."""
        self.path = Path(directory, f"{service}.state")
        self.is_usable = False
        """Whether the state is written to the file."""
        self._lock = -1
        self._is_rejected = False
        """The existing file cannot be read; the next write keeps it under another name."""
        self._writing = Lock()
        self._problem = ""
        if directory:
            self._open(Path(directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Frees the lock."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self.is_usable = False

    def read(self, node: str) -> tuple[NodeState, float] | None:
        """The cached state, and the Unix time at which it was last confirmed; None if there is none.

        A file that cannot be used stays where it is.
        """
        if not self.is_usable:
            return None
        try:
            with self.path.open("rb") as file:
                confirmed_at = nearest_time(os.fstat(file.fileno()).st_mtime)
                return decode(self.service, file.read(_LARGEST), node, self.machine), confirmed_at
        except FileNotFoundError:
            return None
        except (OSError, UnreadableState) as error:
            self.reject(error)
            return None

    def reject(self, error: Exception) -> None:
        """Logs that the file cannot be used; the next write renames it to `SERVICE.refused`."""
        self._is_rejected = True
        reason = error.strerror if isinstance(error, OSError) else str(error)
        log.error("the state file is not used, and will be renamed", path=str(self.path), reason=reason)

    def write(self, parts: Iterable[bytes]) -> bool:
        """Replaces the file and syncs it to disk; returns whether that succeeded. Blocks: not for the event loop."""
        try:
            with self._writing:
                if self._is_rejected:
                    self.path.replace(self.path.with_suffix(".refused"))
                    self._is_rejected = False
                replace_bytes(self.path, parts, _MODE)
        except OSError as error:
            self.log_problem(f"cannot write {self.path}: {error.strerror}")
            return False
        self._problem = ""
        return True

    def touch(self) -> bool:
        """Confirms the content of the file by its time; returns whether that succeeded."""
        try:
            os.utime(self.path)
        except OSError as error:
            self.log_problem(f"cannot write {self.path}: {error.strerror}")
            return False
        return True

    def _open(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = directory / f".{self.service}.lock"  # the file itself is replaced by every write
            self._lock = os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_usable = True
        except BlockingIOError:
            self.close()
            self.log_problem(
                f"another {self.service} keeps its state in {directory}: give this one its own --state-dir"
            )
        except OSError as error:
            self.close()
            self.log_problem(f"cannot use {directory}: {error.strerror}")

    def log_problem(self, reason: str) -> None:
        """Logs why nothing is written, once for each reason."""
        if reason != self._problem:
            self._problem = reason
            log.warning("no state is kept for a reboot during an outage", reason=reason)
