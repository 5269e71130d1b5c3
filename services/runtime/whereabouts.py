"""Notices that clients cannot reach this process any more: its network namespace was replaced, or its socket deleted.

In a container that was joined to the network namespace of another one, a restart of that other one makes a new
namespace and leaves us in the old one, where nothing arrives any more. Nobody tells us: so whoever owns the namespace
records it in a file, and a service that finds another namespace there ends. Its supervisor starts it again, in the
new one. Not before: without an owner there is nothing to be started in, and docker tries only once.
"""

import asyncio
from contextlib import closing
from pathlib import Path
from typing import Final

from services.runtime.inotify import REMOVED, Watch

_POLL_SECONDS: Final = 1.0
_LOOK_SECONDS: Final = 60.0
"""Where inotify is not to be had: the kernel gives each user 128 of it by default."""
_SELF: Final = Path("/proc/self/ns/net")


def this_namespace() -> str:
    """What a record of our namespace says: what readlink(1) prints for /proc/self/ns/net, `net:[4026531840]`."""
    return str(_SELF.readlink())


async def until_moved(record: Path, poll_seconds: float = _POLL_SECONDS) -> str:
    """Returns once the record names another namespace than ours: that, as a sentence.

    No record, or an empty one, says nothing. A look takes 20 µs.
    """
    here = this_namespace()
    while True:
        there = _read(record)
        if there and there != here:
            return (
                f"this process is in the network namespace {here}, but {record} says that it belongs in {there}: "
                "it ends, to be started again there"
            )
        await asyncio.sleep(poll_seconds)


async def until_deleted(path: Path) -> str:
    """Returns once the unix socket at this path is gone: that, as a sentence. grpc cannot bind the path again."""
    with closing(Watch(path.parent, REMOVED)) as watch:
        while True:
            is_watched = watch.open()  # before the look, so that no removal after it is missed
            if not _is_socket(path):
                break
            await (watch.next() if is_watched else asyncio.sleep(_LOOK_SECONDS))
    return f"the socket {path} was deleted: the service ends, so that its supervisor restarts it with a new socket"


def _is_socket(path: Path) -> bool:
    return path.is_socket()


def _read(record: Path) -> str:
    try:
        return record.read_text().strip()
    except FileNotFoundError:
        return ""
