"""The lab's directory: sockets, logs and settings, held by one lab at a time and removed with it."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from flannelette.services.dataplane.udp.proxy import inherit

_LONGEST_SOCKET: Final = "h200/dataplane-green.sock"
_LONGEST_PATH: Final = 107
"""sun_path of unix(7) is 108 bytes with its closing zero."""


class DirectoryUnusable(Exception):
    """One line that says why, and what to do."""


def where(user_id: int) -> Path:
    """Returns the path `${TMPDIR:-/tmp}/flannelette-UID`."""
    return Path(tempfile.gettempdir(), f"flannelette-{user_id}")


@contextmanager
def held(path: Path) -> Iterator[Path]:
    """An empty directory that only we may enter; gone afterwards.

    What a killed lab left there is removed first. Raises DirectoryUnusable: another lab runs in it, somebody else
    owns it, its path is too long for sockets, or it cannot be seen from outside of the lab.
    """
    _check(path)
    descriptor = _lock(path)
    try:
        _empty(path)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(descriptor)


def _check(path: Path) -> None:
    if len(os.fsencode(path / _LONGEST_SOCKET)) > _LONGEST_PATH:
        raise DirectoryUnusable(f"{path} is too long for unix sockets: set TMPDIR to a shorter directory")
    if path.is_relative_to("/run"):
        raise DirectoryUnusable(f"{path} could not be seen from outside of the lab: set TMPDIR to another directory")


def _lock(path: Path) -> int:
    """Makes the directory and locks it; the lock goes with the process."""
    while True:
        try:
            path.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise DirectoryUnusable(
                f"cannot use {path} ({error.strerror}): set TMPDIR to another directory"
            ) from None
        if os.fstat(descriptor).st_uid != os.getuid():
            os.close(descriptor)
            raise DirectoryUnusable(f"{path} belongs to somebody else: set TMPDIR to another directory")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise DirectoryUnusable(
                f"a lab is running in {path}: stop it with Ctrl-C there, or set TMPDIR to have another beside it"
            ) from None
        if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
            return descriptor
        os.close(descriptor)  # the lab before us removed it while we took the lock


def end_proxies(path: Path) -> None:
    """Ends the processes of backend udp, which outlive their dataplanes, also those of a killed lab."""
    for socket in path.glob("*/udp*.sock"):
        for descriptor in (inherit(socket) or ("",))[1:]:  # of its device and port, which are free with them
            os.close(descriptor)


def _empty(path: Path) -> None:
    path.chmod(0o700)
    end_proxies(path)
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()
