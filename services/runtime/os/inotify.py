"""Events of a file or a directory by inotify(7), without polling."""

import asyncio
import ctypes
import os
import struct
from pathlib import Path
from typing import Final

CLOSED: Final = 0x18  # IN_CLOSE_WRITE | IN_CLOSE_NOWRITE
"""A process has closed the file."""
REMOVED: Final = 0x200 | 0x40  # IN_DELETE | IN_MOVED_FROM
"""A file of the directory was deleted or moved away."""
_GONE: Final = 0xC00 | 0x8000  # IN_DELETE_SELF | IN_MOVE_SELF | IN_IGNORED
_EVENT: Final = struct.Struct("=iIII")
_BUFFER: Final = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class Watch:
    """A watch of one path for some events, once opened. Events before `next` are kept; several count as one."""

    def __init__(self, path: Path, events: int) -> None:
        self._path = path
        self._events = events
        self._descriptor: int | None = None

    def open(self) -> bool:
        """Opens the watch if it is closed. False: the path is missing, or access is denied."""
        if self._descriptor is None:
            descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if descriptor < 0:
                return False
            if _libc.inotify_add_watch(descriptor, os.fsencode(self._path), self._events | _GONE) < 0:
                os.close(descriptor)
                return False
            self._descriptor = descriptor
        return True

    async def next(self) -> None:
        """Waits for an event; returns at once if the watch is closed. Closes the watch if the path itself is gone."""
        if self._descriptor is None:
            return
        loop, readable = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._descriptor, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._descriptor)
        if _has_ended(os.read(self._descriptor, _BUFFER)):
            self.close()

    def close(self) -> None:
        """Ends the watch and closes its descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _has_ended(data: bytes) -> bool:
    """Whether these events say that the watched path is gone."""
    start, masks = 0, 0
    while start < len(data):
        _, mask, _, length = _EVENT.unpack_from(data, start)
        start, masks = start + _EVENT.size + length, masks | mask
    return bool(masks & _GONE)
