"""What a case may take: CPU time, by a timer that counts only while this process computes, and memory."""

import logging
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final

import structlog

SECONDS: Final = 10.0
"""A thousand times what the slowest case takes. Whatever else the machine does, the clock is this process's own."""

MEBIBYTES: Final = 200
"""That a run may grow by. A case is of some KiB."""


class TooSlow(Exception):
    """A case took more CPU time than any should."""


class TooLarge(Exception):
    """A run took more memory than any should."""


def _ring(*_: Any) -> None:
    raise TooSlow(f"more than {SECONDS:g} s of CPU time")


@contextmanager
def cpu_limit(seconds: float = SECONDS) -> Iterator[None]:
    """Raises TooSlow inside."""
    before = signal.signal(signal.SIGVTALRM, _ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def memory_limit(most: int = MEBIBYTES) -> Iterator[None]:
    """Raises TooLarge behind it, when this process was larger inside than it was before, by more than that."""
    before = getrusage(RUSAGE_SELF).ru_maxrss
    yield
    grown = (getrusage(RUSAGE_SELF).ru_maxrss - before) / 1024
    if grown > most:
        raise TooLarge(f"{grown:.0f} MiB more than before")


@contextmanager
def quiet() -> Iterator[None]:
    """Nothing is logged."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)
