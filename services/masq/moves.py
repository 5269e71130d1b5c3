"""How often a jump was moved back to its place: against somebody who keeps moving it, nobody can win."""

from collections import deque
from typing import Final

from services.masq.rules import Chain

MOST: Final = 3
SECONDS: Final = 60.0
NOT_FIRST: Final = "jump not first"
"""The cause of a move."""


class Moves:
    """Counts by chain, over the last minute. Time is any clock that never goes back."""

    def __init__(self) -> None:
        self._times: dict[tuple[int, str], deque[float]] = {}

    def note(self, chain: Chain, now: float) -> None:
        """The jump to the chain was moved back."""
        self._of(chain).append(now)

    def are_enough(self, chain: Chain, now: float) -> bool:
        """It was moved back three times within the last minute: now it stays where it is."""
        times = self._of(chain)
        while times and times[0] <= now - SECONDS:
            times.popleft()
        return len(times) >= MOST

    def _of(self, chain: Chain) -> deque[float]:
        return self._times.setdefault((chain.family.version, chain.table), deque())
