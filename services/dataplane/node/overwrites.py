"""Counts how often other programs have lately removed or overwritten the own lease, to limit its repair. Pure.

The node restores an overwritten key at once, so that no packet is lost. Two nodes of one name, or a node and a
script, would overwrite each other at full speed: after the first few repairs there are pauses.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

from services.core.leases.lease import Lease
from services.dataplane.events.finding import Finding

_WINDOW: Final = 60.0
"""Seconds."""
_AT_ONCE: Final = 3
"""So many losses in a window are answered at once. With the pauses after them it is at most some 20 a minute."""
_FIGHT: Final = 2
"""So many losses in a window are told: once is a mistake."""


class OverwriteCounter:
    """Those of the last minute, on a clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque()
        self._last = ""

    @property
    def count(self) -> int:
        """How many there were in the last minute."""
        while self._times and self._times[0] <= self._clock() - _WINDOW:
            self._times.popleft()
        return len(self._times)

    @property
    def is_answered_at_once(self) -> bool:
        """Whether there are still so few that there need not be a pause."""
        return 0 < self.count <= _AT_ONCE

    def note(self, reason: str) -> None:
        """Another one, now."""
        self._times.append(self._clock())
        self._last = reason

    def fight(self, lease: Lease | None) -> Finding | None:
        """That another program writes the key of this lease again and again; None: none does."""
        if lease is None or self.count < _FIGHT:
            return None
        times = f"{self.count} times in the last minute"
        return Finding(
            "own-key",
            f"The key of {lease.node} ({lease.name}) was overwritten or deleted {times}.",
            f"Another program writes it: a script, a flanneld on this host, or a second node called {lease.node}.",
            "",
            f"{self._last}; the node restores it, at most some 20 times a minute",
            is_broken=False,
        )
