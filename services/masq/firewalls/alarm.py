"""A thread's sleep that costs as little as one can: socket(7), SO_RCVTIMEO."""

import ctypes
import math
import socket
import struct
from collections.abc import Callable
from functools import partial
from typing import Final

_SHORTEST_SECONDS: Final = 0.001
_NEVER: Final = (0, 0)
"""As seconds and a part of one: a timeout of 0 is none."""
_TIMEVAL: Final = struct.Struct("@ll")
_ROOM: Final = 64

_libc: Final = ctypes.CDLL(None)


class Alarm:
    """Wakes one thread every so often, or when it is rung.

    A sleep is one call of the kernel, with everything in place for it, and on a timer that the kernel lets expire
    together with others, up to a thirtieth later. A wait for a lock takes half as long again, and Python's own `recv`
    an exception.
    """

    def __init__(self, seconds: float) -> None:
        self._far, self._near = socket.socketpair()
        room = ctypes.create_string_buffer(_ROOM)
        self.wait: Callable[[], object] = partial(
            _libc.recv, ctypes.c_int(self._far.fileno()), room, ctypes.c_size_t(_ROOM), ctypes.c_int(0)
        )
        """Returns when it is time, or rung, or has been rung since the last wait; seldom also too early."""
        self.seconds = math.inf
        self.set(seconds)

    def set(self, seconds: float) -> None:
        """For the waits that begin from now on; from any thread. Infinity: they end when it is rung."""
        if seconds != self.seconds:
            self.seconds = seconds
            whole, part = divmod(max(seconds, _SHORTEST_SECONDS), 1) if seconds < math.inf else _NEVER
            timeout = _TIMEVAL.pack(int(whole), int(part * 1e6))
            self._far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)

    def ring(self) -> None:
        """From any thread."""
        self._near.send(b"!")

    def close(self) -> None:
        """Nobody waits."""
        self._far.close()
        self._near.close()
