"""Serves a unix socket again that somebody has deleted: nobody else tells, and whoever is connected stays so.

grpc cannot listen on another address once it has started (grpc/grpc#27871). So another grpc server with the same
servicers takes the path; those before keep their connections. Each costs 50 KiB and a file descriptor.
"""

import asyncio
import os
from contextlib import ExitStack, closing, suppress
from functools import partial
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


async def keep_standing(server: Server, path: Path) -> None:
    """For ever, on a path that is bound. Its lock is made again too, so that nobody takes the path over unseen."""
    watch, place, trouble = Watch(path.parent, REMOVED), _stat(path.parent), ""
    lock = _stat(lock_of(path))
    with closing(watch), ExitStack() as held:
        while True:
            # Anew, for the directory may be another one: its end is not told while a lock in it is open.
            # Before the look, so that no removal after it is missed.
            watch.close()
            is_watched = watch.open()
            if _is_there(path) and _is_same(lock_of(path), lock):
                await (watch.next() if is_watched else asyncio.sleep(_LOOK_SECONDS))
                continue
            await asyncio.sleep(_RETRY_SECONDS if trouble else _SETTLE_SECONDS)
            try:
                _make_directory(path.parent, place)
                if not _is_same(lock_of(path), lock):
                    held.close()
                    held.enter_context(locked(path))
                    lock = _stat(lock_of(path))
                if not _is_there(path):
                    await server.listen_again(partial(bind_path, path=path))
                    log.warning("the socket was deleted; serving it again", path=str(path))
                trouble = ""
            except Misconfigured as error:
                if str(error) != trouble:
                    trouble = str(error)
                    log.warning("the socket was deleted and cannot be served again; trying on", reason=trouble)


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
    """As it was, as far as we may; the services share it by its group. What fails shows when it is used."""
    if like is not None and not directory.exists():
        with suppress(OSError):
            directory.mkdir(parents=True)
            os.chown(directory, like.st_uid, like.st_gid)
            directory.chmod(like.st_mode & 0o7777)
