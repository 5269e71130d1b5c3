"""Which changes every connected node has in its kernel, and how long each one took to get there."""

import math
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

NOTHING_YET: Final = -1
"""The position of a node that has not said anything."""


class Convergence:
    """Positions are those of the history: a node that is at one has every change up to it.

    A change converges when the last node that is connected has it, and that is observed once, however many nodes
    come later. What nobody waits for is never observed: it entered while nobody was connected, or all who were have
    left before it converged. Cheap enough to be told everything by thousands of nodes: a report costs a few
    dictionary operations, a change one observation.
    """

    def __init__(
        self, timer: Callable[[], float], observe: Callable[[float], None], most_times: int = 20_000
    ) -> None:
        self.last = NOTHING_YET
        """The newest change."""
        self.failing: set[str] = set()
        """Connected nodes that could not program some leases."""
        self._timer = timer
        self._observe = observe
        self._entered: deque[float] = deque(maxlen=most_times)
        """When the changes entered; that of `last` is the last one."""
        self._positions: dict[str, int] = {}
        self._nodes_at: Counter[int] = Counter()
        self._lowest: float = math.inf
        """Where the last of the connected nodes is."""
        self._reached = -math.inf
        """The latest time at which a node got somewhere, of all that have said so."""
        self._unattended = NOTHING_YET
        """Up to here, nobody waits for a change any more."""
        self._settled: deque[tuple[int, float]] = deque(maxlen=most_times)
        """Up to which change everything had converged, when; both grow."""

    @property
    def nodes_behind(self) -> int:
        """How many connected nodes lack the newest change."""
        return len(self._positions) - self._nodes_at.get(self.last, 0)

    def entered(self, position: int) -> None:
        """Everything up to this change is in the table now; a large step is several changes."""
        self._entered.extend([self._timer()] * (position - self.last))
        self.last = position
        if not self._positions:
            self._unattended = position

    def place(self, node: str, position: int, *, since: float | None = None, failing: bool = False) -> None:
        """A connected node is here, since then; None: since now."""
        now = self._timer()
        self._reached = max(self._reached, now if since is None else min(since, now))
        old = self._positions.get(node)
        self._positions[node] = position
        self._move(old, position)
        self._settle(self._reached)
        (self.failing.add if failing else self.failing.discard)(node)

    def forget(self, node: str) -> None:
        """The node is not connected any more, and nobody waits for it."""
        self.failing.discard(node)
        self._move(self._positions.pop(node), None)
        self._settle(self._timer())  # if it was the last one without, it was waited for until now
        if not self._positions:
            self._unattended = self.last

    def position(self, node: str) -> int | None:
        """Where it is; None: not connected."""
        return self._positions.get(node)

    def is_converged(self, position: int) -> bool:
        """Every connected node has it and could program everything; there is at least one."""
        return position <= self._lowest < math.inf and not self.failing

    def lacking(self, position: int) -> list[str]:
        """The connected nodes that have not got so far, sorted."""
        return sorted(node for node, at in self._positions.items() if at < position)

    def having(self, position: int) -> list[str]:
        """The connected nodes that have it, sorted."""
        return sorted(node for node, at in self._positions.items() if at >= position)

    def elapsed(self, position: int) -> float | None:
        """Seconds from the change until all that were connected had it, or until now if one lacks it still.

        None: nobody is connected, and nobody ever was. At least so long, for a change whose time is forgotten.
        """
        entered = self._entered_at(position)
        if self._lowest < position:
            return self._timer() - entered
        index = bisect_left(self._settled, (position, -math.inf))
        return max(0.0, self._settled[index][1] - entered) if index < len(self._settled) else None

    def _move(self, old: int | None, new: int | None) -> None:
        counts = self._nodes_at
        if old is not None:
            counts[old] -= 1
            if not counts[old]:
                del counts[old]
        if new is not None:
            counts[new] += 1
        if new is not None and new < self._lowest:
            self._lowest = new
        elif old == self._lowest and old not in counts:
            self._lowest = min(counts, default=math.inf)

    def _settle(self, at: float) -> None:
        """What all have by now, they have since then, but not since before it entered."""
        settled = self._settled[-1][0] if self._settled else NOTHING_YET
        if not settled < self._lowest < math.inf:
            return
        lowest = int(self._lowest)
        for position in range(max(settled, self._unattended) + 1, lowest + 1):
            self._observe(max(0.0, at - self._entered_at(position)))
        self._settled.append((lowest, at))

    def _entered_at(self, position: int) -> float:
        return self._entered[max(position - self.last - 1, -len(self._entered))]
