"""The lock of all programs that change legacy tables: flock(2) on one file, as iptables itself does it."""

import fcntl
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Final

from flannelette.services.core.errors import Unavailable

DEFAULT_PATH: Final = Path("/run/xtables.lock")
PATH_VARIABLE: Final = "XTABLES_LOCKFILE"
"""Environment variable that names another file; iptables obeys it too (since 1.8.1)."""


def lock_path() -> Path:
    """The lock file that iptables in this environment uses."""
    return Path(os.environ.get(PATH_VARIABLE) or DEFAULT_PATH)


@contextmanager
def xtables_lock(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock while the block runs: no program that takes the lock changes a table between read and commit.

    Waits in the kernel's queue, so that busy writers cannot starve us. Raises Unavailable: not free within
    `seconds`, or the file cannot be made. Main thread only (it borrows SIGALRM).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(
            f"cannot open the iptables lock {path}: {error.strerror}; mount the host's /run/xtables.lock writable, "
            f"or name another file in {PATH_VARIABLE}"
        ) from None
    try:
        _close_to_others(descriptor)
        _lock(descriptor, path, seconds)
        yield
    finally:
        os.close(descriptor)


def _close_to_others(descriptor: int) -> None:
    """Makes our lock file root's alone, as iptables makes it: a kubelet makes it for everybody to read, and who may
    read it may lock it, and so keep all iptables of the host from any change.
    """
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and state.st_mode & 0o077:
        with suppress(OSError):  # on a file system that is mounted to be read
            os.fchmod(descriptor, 0o600)


def _lock(descriptor: int, path: Path, seconds: float) -> None:
    before = signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except TimeoutError:
        raise Unavailable(
            f"another program has held the iptables lock {path} for {seconds:g} s: see which with `fuser {path}`"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError
