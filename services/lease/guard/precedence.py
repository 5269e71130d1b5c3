"""Of leases that overlap, which are served. Pure.

The rule: in the order of their rank (services.core.conflicts), each is served unless it overlaps one that is served
already, so that every process that sees the same leases serves the same.
"""

from collections.abc import Iterable, Set
from heapq import heappop, heappush

from services.core.conflicts import Rank, rank_of
from services.core.lease import Lease
from services.lease.guard.overlaps import Overlaps


class Precedence:
    """Follows leases as they come and go. What a change costs is what it overlaps, however many leases there are.

    Between calls: `beaten` has every lease that overlaps a served one of a better rank, and the best of these.
    `overlaps`: of these leases, if somebody has made it already.
    """

    def __init__(self, leases: Iterable[Lease], overlaps: Overlaps | None = None) -> None:
        self.beaten: dict[str, str] = {}
        """Leases that are not served, with the best one that is in their way."""
        self._leases = {lease.name: lease for lease in leases}
        self._overlaps = overlaps or Overlaps(self._leases.values())
        self._ranks: dict[str, Rank] = {}
        self._rivals: dict[str, int] = {}
        """How many served ones of a better rank a lease overlaps, where that is not 0."""
        self._due: list[tuple[Rank, str]] = []
        """A heap: those whose rivals changed. In the order of ranks nobody is decided twice."""
        self._unserved = self._overlaps.conflicting()
        for name in self._unserved:
            self._decide_later(name)
        self._decide()

    def add(self, lease: Lease) -> Set[str]:
        """A new lease; returns whom that concerns: it was or is beaten, or by another one than before."""
        self._leases[lease.name] = lease
        self._overlaps.add(lease)
        neighbours = self._overlaps.of(lease)
        if not neighbours:
            return frozenset()
        rank = self._rank(lease.name)
        rivals = sum(1 for name in neighbours if self._rank(name) < rank and name not in self._unserved)
        if rivals:
            self._rivals[lease.name] = rivals
        self._unserved.add(lease.name)
        self._decide_later(lease.name)
        return self._decide()

    def remove(self, name: str) -> Set[str]:
        """A lease that is there is gone; returns whom else that concerns."""
        if name in self._unserved:
            self._unserved.discard(name)
        else:
            self._tell_worse(name, -1)
        self._overlaps.remove(self._leases.pop(name))
        self._ranks.pop(name, None)
        self._rivals.pop(name, None)
        self.beaten.pop(name, None)
        return self._decide()

    def _decide(self) -> set[str]:
        concerned: set[str] = set()
        while self._due:
            _, name = heappop(self._due)
            is_free = name not in self._rivals
            if is_free and name in self._unserved:
                self._unserved.discard(name)
                self._tell_worse(name, +1)
            elif not is_free and name not in self._unserved:
                self._unserved.add(name)
                self._tell_worse(name, -1)
            if is_free:
                self.beaten.pop(name, None)
            elif name not in self.beaten:
                self.beaten[name] = self._best_rival(name)
            concerned.add(name)
        return concerned

    def _tell_worse(self, name: str, change: int) -> None:
        """One is served now (+1) or no longer (-1): that is news for those of a worse rank beside it."""
        rank = self._rank(name)
        for other in self._overlaps.of(self._leases[name]):
            if self._rank(other) < rank:
                continue
            rivals = self._rivals[other] = self._rivals.get(other, 0) + change
            if not rivals:
                del self._rivals[other]
            beaten_by = self.beaten.get(other)
            if beaten_by is None:
                self._decide_later(other)
            elif beaten_by == name or (change > 0 and rank < self._rank(beaten_by)):
                del self.beaten[other]  # it was the best one, or is now
                self._decide_later(other)

    def _best_rival(self, name: str) -> str:
        rank = self._rank(name)
        neighbours = self._overlaps.of(self._leases[name])
        rivals = (self._rank(n) for n in neighbours if n not in self._unserved and self._rank(n) < rank)
        return min(rivals)[-1]

    def _decide_later(self, name: str) -> None:
        heappush(self._due, (self._rank(name), name))

    def _rank(self, name: str) -> Rank:
        rank = self._ranks.get(name)
        if rank is None:
            rank = self._ranks[name] = rank_of(self._leases[name])
        return rank
