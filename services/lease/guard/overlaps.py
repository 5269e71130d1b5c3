"""Finds subnets that overlap, among many. Pure.

Of two subnets one lies in the other, or they have nothing in common. So what overlaps a subnet are those around it,
one look for each prefix length in use, and those in it, which follow it in the order of their addresses: no look-up
passes over all.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, TypeAlias

from services.core.family import Network
from services.core.lease import Lease

Place: TypeAlias = tuple[int, int]
"""First address and prefix length: in this order, a subnet comes before all that lie in it."""
_NOWHERE: Final = (0, 0)
"""Between this place and itself is nothing."""


class Overlaps:
    """The subnets of leases, by the names of the leases."""

    def __init__(self, leases: Iterable[Lease] = ()) -> None:
        self._lines = {4: _Line(), 6: _Line()}
        for lease in leases:
            for subnet in lease.subnets:
                names = self._lines[subnet.cidr.version].names
                place = place_of(subnet.cidr)
                names[place] = (*names[place], lease.name) if place in names else (lease.name,)
        for line in self._lines.values():
            line.settle()

    def add(self, lease: Lease) -> None:
        """A lease that is not there yet."""
        for subnet in lease.subnets:
            self._lines[subnet.cidr.version].add(place_of(subnet.cidr), lease.name)

    def remove(self, lease: Lease) -> None:
        """A lease that is there, with the same subnets."""
        for subnet in lease.subnets:
            self._lines[subnet.cidr.version].remove(place_of(subnet.cidr), lease.name)

    def of(self, lease: Lease) -> set[str]:
        """The other leases that have an address in common with this one, which need not be there itself."""
        found: set[str] = set()
        for subnet in lease.subnets:
            line = self._lines[subnet.cidr.version]
            for place in line.touching(place_of(subnet.cidr), subnet.cidr.max_prefixlen):
                found.update(line.names[place])
        found.discard(lease.name)
        return found

    def outside(self, bounds: Mapping[int, tuple[Place, Place]]) -> set[str]:
        """Leases with a subnet that is not between the places of its version, or whose version has none."""
        found: set[str] = set()
        for version, line in self._lines.items():
            for place in line.outside(*bounds.get(version, (_NOWHERE, _NOWHERE))):
                found.update(line.names[place])
        return found

    def conflicting(self) -> set[str]:
        """All leases that overlap another one."""
        found: set[str] = set()
        for version, line in self._lines.items():
            for place in line.crowded(32 if version == 4 else 128):
                found.update(line.names[place])
        return found


class _Line:
    """The subnets of one address family."""

    def __init__(self) -> None:
        self.names: dict[Place, tuple[str, ...]] = {}
        """Nearly always one."""
        self._order: list[Place] = []
        self._lengths: Counter[int] = Counter()

    def settle(self) -> None:
        """After `names` was filled at once."""
        self._order = sorted(self.names)
        self._lengths = Counter(length for _, length in self._order)

    def add(self, place: Place, name: str) -> None:
        names = self.names.get(place, ())
        self.names[place] = (*names, name)
        if not names:
            insort(self._order, place)
            self._lengths[place[1]] += 1

    def remove(self, place: Place, name: str) -> None:
        left = self.names[place] = tuple(other for other in self.names[place] if other != name)
        if not left:
            del self.names[place]
            del self._order[bisect_left(self._order, place)]
            self._lengths[place[1]] -= 1
            if not self._lengths[place[1]]:
                del self._lengths[place[1]]

    def touching(self, place: Place, bits: int) -> Iterator[Place]:
        start, length = place
        for around in self._lengths:
            if around <= length:
                candidate = (start >> (bits - around) << (bits - around), around)
                if candidate in self.names:
                    yield candidate
        order, end = self._order, start + (1 << (bits - length))
        for index in range(bisect_left(order, (start, length + 1)), bisect_left(order, (end, 0))):
            yield order[index]

    def outside(self, first: Place, last: Place) -> Iterator[Place]:
        """Places that are not between these."""
        order = self._order
        yield from order[: bisect_right(order, first)]
        yield from order[bisect_left(order, last) :]

    def crowded(self, bits: int) -> Iterator[Place]:
        """Places that overlap another one, or hold two leases; some of them more than once."""
        around, end = (0, 0), 0
        for place in self._order:
            if place[0] >= end:
                around, end = place, place[0] + (1 << (bits - place[1]))
                if len(self.names[place]) > 1:
                    yield place
            else:
                yield around
                yield place


def place_of(cidr: Network) -> Place:
    """Where a subnet is."""
    return int(cidr.network_address), cidr.prefixlen
