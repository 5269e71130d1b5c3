"""Detects that clients cannot reach this process any more: its network namespace was replaced, or its socket deleted.

A container can join the network namespace of another container. A restart of the other one creates a new namespace,
and this process stays in the old one, where no packet arrives. The owner of the namespace therefore records it in a
file, and a service that reads another namespace there ends. Its supervisor restarts it in the new one. It does not
end earlier: without an owner there is no namespace to start in, and docker tries only once.
"""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Final

from flannelette.services.runtime.os.inotify import REMOVED, Watch

_POLL_SECONDS: Final = 1.0
_REFRESH_SECONDS: Final = 60.0
"""Pause between checks where inotify is not available: the kernel allows each user 128 instances by default."""
_SELF: Final = Path("/proc/self/ns/net")


def this_namespace() -> str:
    """The namespace of this process as readlink(1) prints /proc/self/ns/net: `net:[4026531840]`."""
    return str(_SELF.readlink())


async def until_moved(record: Path, poll_seconds: float = _POLL_SECONDS) -> str:
    """Waits until the record names another namespace than that of this process; returns a sentence that says so.

    A missing or empty record counts as no change. A check takes 20 µs.
    """
    here = this_namespace()
    while True:
        there = _read(record)
        if there and there != here:
            return (
                f"this process is in the network namespace {here}, but {record} says that it belongs in {there}: "
                "the service ends, so that its supervisor restarts it there"
            )
        await asyncio.sleep(poll_seconds)


async def until_deleted(path: Path) -> str:
    """Waits until the unix socket at this path is deleted; returns a sentence that says so. grpc cannot rebind it."""
    with closing(Watch(path.parent, REMOVED)) as watch:
        while True:
            is_watched = watch.open()  # before the check, so that no later removal is missed
            if not _is_socket(path):
                break
            await (watch.next() if is_watched else asyncio.sleep(_REFRESH_SECONDS))
    return f"the socket {path} was deleted: the service ends, so that its supervisor restarts it with a new socket"


def _is_socket(path: Path) -> bool:
    return path.is_socket()


def _read(record: Path) -> str:
    try:
        return record.read_text().strip()
    except FileNotFoundError:
        return ""
