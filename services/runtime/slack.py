"""Lets threads sleep a little longer than they ask for, so that an idle process wakes less often: prctl(2)."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SET, _GET = 29, 30  # PR_SET_TIMERSLACK, PR_GET_TIMERSLACK of linux/prctl.h

_libc: Final = ctypes.CDLL(None)


@contextmanager
def timer_slack(seconds: float) -> Iterator[None]:
    """Threads that the block starts, and those that they start, wake up to so much later than they asked for.

    The thread that runs the block is as before, behind it. gRPC's threads look for work up to 30 times a second; what
    they do wait for (a socket, each other) wakes them at once all the same. Later are its own timers: deadlines,
    keepalive and the pause before it connects again.
    """
    before = _libc.prctl(_GET, 0, 0, 0, 0)
    _libc.prctl(_SET, ctypes.c_ulong(int(seconds * 1e9)), 0, 0, 0)
    try:
        yield
    finally:
        _libc.prctl(_SET, ctypes.c_ulong(before), 0, 0, 0)
