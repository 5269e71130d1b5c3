"""Which cursor of the lease service above stands for which position of ours. No IO."""

from bisect import bisect_right
from typing import Final

_MOST: Final = 20_000
"""As many as our own history has entries: older positions nobody reports."""


class Cursors:
    """Positions of our history, growing, each with the newest cursor above whose changes are all in it."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._cursors: list[str] = []

    def note(self, position: int, cursor: str) -> bool:
        """Our table at this position has everything up to that cursor; says whether that is news."""
        if self._cursors and (self._positions[-1], self._cursors[-1]) == (position, cursor):
            return False
        if self._positions and self._positions[-1] == position:
            self._cursors[-1] = cursor
        else:
            self._positions.append(position)
            self._cursors.append(cursor)
        if len(self._positions) > 2 * _MOST:
            del self._positions[:_MOST], self._cursors[:_MOST]
        return True

    def above(self, position: int) -> str:
        """The newest cursor above that a node at our position has; empty: not known."""
        index = bisect_right(self._positions, position)
        return self._cursors[index - 1] if index else ""
