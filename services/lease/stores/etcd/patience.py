"""How one call goes on after a failure. Pure: the time is an argument."""

from typing import Final

_FIRST_PAUSE: Final = 0.2
"""An election takes a second or two; the pause doubles."""


class Patience:
    """Each member is asked once; all of them again, after a pause, when one has a fault that may pass soon.

    That is an election, a connection that broke, and an answer that does not come: a write that went to a leader
    that died is lost, and etcd itself waits for it longer than the election takes. The whole call takes no longer
    than twice the time of one answer.
    """

    def __init__(self, members: int, seconds: float, now: float) -> None:
        self._members = self._left = members
        self._seconds = seconds
        self._until = now + 2 * seconds
        self._passing = False
        self._pause = _FIRST_PAUSE

    def timeout(self, now: float) -> float:
        """How long the next answer may take."""
        return min(self._seconds, self._until - now)

    def pause(self, now: float, *, passing: bool) -> float | None:
        """How long to wait, after a failure, before the next member is asked; None: give up."""
        self._left -= 1
        self._passing = self._passing or passing
        pause = 0.0
        if not self._left:
            if not self._passing:
                return None
            pause, self._pause = self._pause, 2 * self._pause
            self._left, self._passing = self._members, False
        return pause if now + pause < self._until else None
