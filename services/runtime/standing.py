"""Serves a unix socket again that somebody has deleted: nobody else tells, and whoever is connected stays so.

grpc cannot listen on another address once it has started (grpc/grpc#27871). So another grpc server with the same
servicers takes the path; those before keep their connections. Each costs 50 KiB and a file descriptor.
"""

import asyncio
import os
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Final

from services.core.errors import Misconfigured
from services.runtime.inotify import REMOVED, Watch
from services.runtime.listen import bind_path, lock_of, locked
from services.runtime.logs import get_logger
from services.runtime.server import Server

log = get_logger()

_SETTLE_SECONDS: Final = 1.0
"""Who empties a directory deletes that next."""
_RETRY_SECONDS: Final = 5.0
"""After a failure: then only somebody else can put it right."""
_LOOK_SECONDS: Final = 60.0
"""Where inotify is not to be had: the kernel gives each user 128 of it by default."""
_SOCKET_TROUBLE: Final = "the socket was deleted and cannot be served again; trying on"
_LOCK_TROUBLE: Final = "the lock of the socket was deleted and cannot be held again; trying on"


async def keep_standing(server: Server, path: Path, held: ExitStack) -> None:
    """For ever, on a path that is bound. Its lock is made again too, so that nobody takes the path over unseen.

    `held` has that lock then. It ends after the server has stopped, which deletes what is at the path.
    """
    place, lock = _stat(path.parent), _stat(lock_of(path))
    watch, watched = Watch(path.parent, REMOVED), place
    trouble: tuple[str, str] | None = None
    lock_again = held.enter_context(ExitStack())
    with closing(watch):
        while True:
            # The directory may be another one: its end is not told while a lock in it is open.
            if not _is_same(path.parent, watched):
                watch.close()
                watched = _stat(path.parent)
            is_watched = watch.open()  # before the look, so that no removal after it is missed
            if _is_there(path) and _is_same(lock_of(path), lock):
                await (watch.next() if is_watched else asyncio.sleep(_LOOK_SECONDS))
                continue
            await asyncio.sleep(_RETRY_SECONDS if trouble else _SETTLE_SECONDS)
            try:
                _make_directory(path.parent, place)
                if not _is_same(lock_of(path), lock):
                    with ExitStack() as new:
                        lock = new.enter_context(locked(path))
                        lock_again.close()  # only now: where the lock is still that one, it stays held
                        lock_again.push(new.pop_all())
                if not _is_there(path):
                    await server.listen_again(path, bind_path)
                    log.warning("the socket was deleted; serving it again", path=str(path))
                trouble = None
            except (Misconfigured, OSError) as error:
                now = (_LOCK_TROUBLE if _is_there(path) else _SOCKET_TROUBLE, str(error))
                if now != trouble:
                    trouble = now
                    log.warning(now[0], reason=now[1])


def _is_there(path: Path) -> bool:
    """Whether the path is taken: what somebody else has put there stays."""
    return os.path.lexists(path)


def _is_same(path: Path, known: os.stat_result | None) -> bool:
    """Whether this is still the file that it was."""
    now = _stat(path)
    return now is not None and known is not None and os.path.samestat(now, known)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _make_directory(directory: Path, like: os.stat_result | None) -> None:
    """As it was, as far as we may; the services share it by its group. What fails shows when it is used.

    One that is there is as somebody wants it.
    """
    if like is None:
        return
    try:
        directory.mkdir(parents=True)
    except OSError:
        return
    # The mode after the group, without which setgid is not ours to give; the owner last, who alone may change both.
    with suppress(OSError):
        os.chown(directory, -1, like.st_gid)
    with suppress(OSError):
        directory.chmod(like.st_mode & 0o7777)
    with suppress(OSError):
        os.chown(directory, like.st_uid, -1)
