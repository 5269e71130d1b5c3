"""How often a jump was moved back to its place, and what is said of chains that do not stay: nobody wins a fight."""

from collections import deque
from collections.abc import Sequence
from typing import Final

from services.masq.firewalls.firewall import ChainState
from services.masq.rules import Chain

MOST: Final = 3
SECONDS: Final = 60.0
NOT_FIRST: Final = "jump not first"
"""The cause of a move."""

_DO_NOT_STAY: Final = "do not stay as they should be: another program keeps changing them"
_LEFT: Final = (
    "the jump to {chain} is not first: another program has moved it more than {most} times within a minute, and now "
    "it is left behind that program's rule: {rule}"
)


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


def what_is_wrong(states: Sequence[ChainState]) -> str:
    """With chains that do not stay; empty for none."""
    left = [state for state in states if state.causes == (NOT_FIRST,)]
    sentences = [_LEFT.format(chain=_name(state), most=MOST, rule=state.in_the_way) for state in left]
    others = [_name(state) for state in states if state not in left]
    return "; ".join([*sentences, *([f"{' and '.join(others)} {_DO_NOT_STAY}"] if others else [])])


def _name(state: ChainState) -> str:
    return f"{state.chain.family} {state.chain.name}"
