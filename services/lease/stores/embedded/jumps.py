"""The clock of the machine is set, by hand or by NTP: how far, by a clock that nobody sets."""

from collections.abc import Callable
from typing import Final

_TOLERANCE: Final = 5.0
"""Seconds. NTP moves a clock that is off by less without a jump; small steps add up."""


class Jumps:
    """`clock` is Unix time, `timer` one that only ever goes on. Neither knows what passed between two processes."""

    def __init__(self, clock: Callable[[], float], timer: Callable[[], float]) -> None:
        self._clock = clock
        self._timer = timer
        self._offset = self._now()

    @property
    def seconds(self) -> float:
        """How far the clock was set since the last `take`; 0 if that is next to nothing."""
        seconds = self._now() - self._offset
        return seconds if abs(seconds) > _TOLERANCE else 0.0

    def take(self) -> None:
        """What was written by the clock of before is right again."""
        self._offset = self._now()

    def _now(self) -> float:
        return self._clock() - self._timer()
