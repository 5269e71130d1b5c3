"""`SERVICE.state` in --state-dir: one process of a service at a time, and never a file that cannot be read."""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path
from threading import Lock
from typing import Final, Self

from services.core.measures import nearest_time
from services.runtime.atomic import replace_bytes
from services.runtime.logs import get_logger
from services.runtime.memory import Memory, Refused, decode

log = get_logger()

_MODE: Final = 0o600
_LARGEST: Final = 1 << 28
"""Bytes; a million leases."""


class StateFile:
    """Where a memory is kept. Without a directory, or where that cannot be used, nothing is; which is logged once.

    It is locked while this process lives: of two dataplanes that are given the same directory, the second remembers
    nothing, instead of what the first knows of another network namespace. Services may share a directory.
    """

    def __init__(self, directory: str, service: str) -> None:
        self.service = service
        self.path = Path(directory, f"{service}.state")
        self.is_kept = False
        """Whether what is written will be there after a reboot, as far as is known."""
        self._lock = -1
        self._is_foreign = False
        """What is there is not ours, and must not be lost."""
        self._writing = Lock()
        self._complaint = ""
        if directory:
            self._take(Path(directory))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Gives it back."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        self.is_kept = False

    def read(self, node: str) -> tuple[Memory, float] | None:
        """What the node remembers, and when that was known to be true, as Unix time.

        What cannot be used is None, and stays there.
        """
        if not self.is_kept:
            return None
        try:
            with self.path.open("rb") as file:
                return decode(self.service, file.read(_LARGEST), node), nearest_time(os.fstat(file.fileno()).st_mtime)
        except FileNotFoundError:
            return None
        except (OSError, Refused) as error:
            self.refuse(error)
            return None

    def refuse(self, error: Exception) -> None:
        """What is there cannot be used; it is kept beside what will be written."""
        self._is_foreign = True
        reason = error.strerror if isinstance(error, OSError) else str(error)
        log.error("the state is not used, and will be kept beside", path=str(self.path), reason=reason)

    def write(self, parts: Iterable[bytes]) -> bool:
        """Replaces it, on disk when it returns; whether that could be done. Blocks: not for the event loop."""
        try:
            with self._writing:
                if self._is_foreign:
                    self.path.replace(self.path.with_suffix(".refused"))
                    self._is_foreign = False
                replace_bytes(self.path, parts, _MODE)
        except OSError as error:
            self.complain(f"cannot write {self.path}: {error.strerror}")
            return False
        self._complaint = ""
        return True

    def touch(self) -> bool:
        """What was written is still true; whether that could be noted."""
        try:
            os.utime(self.path)
        except OSError as error:
            self.complain(f"cannot write {self.path}: {error.strerror}")
            return False
        return True

    def _take(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = directory / f".{self.service}.lock"  # the file itself is another one after every writing
            self._lock = os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, _MODE)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_kept = True
        except BlockingIOError:
            self.close()
            self.complain(f"another {self.service} keeps its state in {directory}: give this one its own --state-dir")
        except OSError as error:
            self.close()
            self.complain(f"cannot use {directory}: {error.strerror}")

    def complain(self, reason: str) -> None:
        """Into the log, once."""
        if reason != self._complaint:
            self._complaint = reason
            log.warning("nothing is remembered for a reboot during an outage", reason=reason)
