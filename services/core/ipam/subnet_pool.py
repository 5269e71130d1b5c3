"""What is taken of a network and what is free: kept as leases come and go, so that asking costs no listing. Pure.

Of what is free the subnet of a node is chosen; the choice among equals is an argument.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain
from typing import Final, TypeAlias

from flannelette.services.core.errors import Exhausted
from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.network import FamilyNetwork, NetworkConfig, contains


class Use(IntEnum):
    """Why a subnet is not free. Where several hold, the first one counts."""

    LEASED = 0
    RESERVED = 1
    BLOCKED = 2
    """Overlaps with what is no subnet of this network, or with a key whose value is no lease."""


UsedRange: TypeAlias = tuple[Network, Use]

_WIDE: Final = 64
"""A network that touches more subnets than this is kept as a span, not subnet by subnet."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a network is in one family, in subnets."""

    total: int
    leased: int = 0
    reserved: int = 0
    blocked: int = 0

    @property
    def used(self) -> int:
        """Subnets that may not be leased."""
        return self.leased + self.reserved + self.blocked


class FamilyPool:
    """The subnets of one family, numbered from SubnetMin on. Everything may overlap everything.

    What holds the whole network takes nothing of it: it is no lease of it, and one wrong key would take all there is.

    Adding, removing and asking take no time that grows with what is taken, as long as few networks are wider than
    64 subnets; memory grows with what is taken, not with the network.
    """

    def __init__(self, network: FamilyNetwork) -> None:
        self.network = network
        self._size: Final = 1 << (network.family.bits - network.subnet_length)
        self._low = int(network.subnet_min) if network.subnet_min is not None else 0
        self._total = 0
        if network.subnet_max is not None:
            self._total = (int(network.subnet_max) - self._low) // self._size + 1
        self._uses: dict[int, list[int]] = {}
        """How often a subnet is used for what, by its number; only those that are."""
        self._counts = [0, 0, 0]
        self._wide: Counter[tuple[int, int]] = Counter()
        """First and last subnet of networks that touch many."""
        self._merged: list[tuple[int, int]] | None = []
        """The same, ascending and apart from each other; None: to be made."""
        self._lowest = 0
        """No subnet below this number is free."""

    def add(self, cidr: Network, use: Use) -> None:
        """Records one use of a subnet; a subnet may have several."""
        self._note(cidr, use, 1)

    def remove(self, cidr: Network, use: Use) -> None:
        """Takes back one `add` of a subnet; after the last one the subnet is free."""
        self._note(cidr, use, -1)

    def is_free(self, cidr: Network) -> bool:
        """Whether it is a subnet of this network that overlaps nothing."""
        if not self._total or not self.network.fits(cidr):
            return False
        number = self._number(int(cidr.network_address))
        return number not in self._uses and self._end_of_span(number) is None

    def candidates(self, most: int) -> list[int]:
        """The numbers of the first free subnets from SubnetMin upwards, at most so many."""
        while self._lowest in self._uses:
            self._lowest += 1
        found: list[int] = []
        number = self._lowest
        while number < self._total and len(found) < most:
            end = self._end_of_span(number)
            if end is not None:
                number = end
            elif number not in self._uses:
                found.append(number)
            number += 1
        return found

    def subnet(self, number: int) -> Network:
        """The subnet of this number."""
        return type(self.network.cidr)((self._low + number * self._size, self.network.subnet_length))

    @property
    def usage(self) -> Usage:
        """How full it is; a network counts for every subnet that it touches."""
        wide = sum(last - first + 1 - self._used_between(first, last) for first, last in self._spans())
        leased, reserved, blocked = self._counts
        return Usage(self._total, leased, reserved, blocked + wide)

    def _note(self, cidr: Network, use: Use, change: int) -> None:
        family = self.network.family
        if cidr.version != family.version or contains(cidr, self.network.cidr):
            return
        start = int(cidr.network_address)
        first = max(self._number(start), 0)
        last = min(self._number(start + (1 << (family.bits - cidr.prefixlen)) - 1), self._total - 1)
        if last - first < _WIDE:
            # One of the right length that starts in the range is a subnet of this network.
            fits = first == last and cidr.prefixlen == self.network.subnet_length
            for number in range(first, last + 1):
                self._count(number, use if fits else Use.BLOCKED, change)
        else:
            self._wide[first, last] += change
            self._wide += Counter()  # drops what is not there any more
            self._merged = None

    def _count(self, number: int, use: Use, change: int) -> None:
        uses = self._uses.setdefault(number, [0, 0, 0])
        if (before := _first(uses)) is not None:
            self._counts[before] -= 1
        uses[use] += change
        if (after := _first(uses)) is not None:
            self._counts[after] += 1
        else:
            del self._uses[number]
            self._lowest = min(self._lowest, number)

    def _end_of_span(self, number: int) -> int | None:
        """The last subnet of the wide network that covers this one, if any."""
        spans = self._spans()
        index = bisect_right(spans, number, key=lambda span: span[0]) - 1
        return spans[index][1] if index >= 0 and spans[index][1] >= number else None

    def _spans(self) -> list[tuple[int, int]]:
        if self._merged is None:
            self._merged = list(_merge(self._wide))
        return self._merged

    def _used_between(self, first: int, last: int) -> int:
        if last - first < len(self._uses):
            return sum(number in self._uses for number in range(first, last + 1))
        return sum(first <= number <= last for number in self._uses)

    def _number(self, address: int) -> int:
        return (address - self._low) // self._size


class SubnetPool:
    """The subnets of a network, free and taken: a FamilyPool for each enabled family."""

    def __init__(self, network: NetworkConfig, taken: Iterable[UsedRange] = ()) -> None:
        self.network = network
        self.families = tuple(map(FamilyPool, network.families))
        for cidr, use in taken:
            self.add(cidr, use)

    def add(self, cidr: Network, use: Use = Use.LEASED) -> None:
        """Records one use of a subnet, of either family."""
        for pool in self.families:
            pool.add(cidr, use)

    def remove(self, cidr: Network, use: Use = Use.LEASED) -> None:
        """Takes one `add` back."""
        for pool in self.families:
            pool.remove(cidr, use)

    @contextmanager
    def as_if(self, *, gone: Sequence[UsedRange] = (), also: Sequence[UsedRange] = ()) -> Iterator[None]:
        """While the block runs, some of what is taken is free, and something else is taken too."""
        self._exchange(gone, also)
        try:
            yield
        finally:
            self._exchange(also, gone)

    def _exchange(self, gone: Sequence[UsedRange], come: Sequence[UsedRange]) -> None:
        for cidr, use in gone:
            self.remove(cidr, use)
        for cidr, use in come:
            self.add(cidr, use)


def _first(uses: list[int]) -> int | None:
    return next((use for use, count in enumerate(uses) if count), None)


def _merge(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    current: tuple[int, int] | None = None
    for first, last in sorted(spans):
        if current is not None and first <= current[1] + 1:
            current = current[0], max(current[1], last)
        else:
            if current is not None:
                yield current
            current = first, last
    if current is not None:
        yield current


Draw = Callable[[int], int]
"""Given n, any number from 0 to n-1; `random.randrange` in life, anything in a test."""

CANDIDATES = 100
"""flannel draws among this many free subnets, from SubnetMin upwards, so that racing nodes rarely collide."""


def fits(network: NetworkConfig, lease: Lease) -> bool:
    """Whether a lease has one fitting subnet in each enabled family and none in another.

    Beside IPv4 it may lack IPv6: that of a node without an IPv6 address does.
    """
    cidrs = [subnet.cidr for subnet in lease.subnets]
    return all_fit(network.families, cidrs) or all_fit(network.families[:1], cidrs)


def all_fit(families: Sequence[FamilyNetwork], cidrs: Sequence[Network]) -> bool:
    """Whether these are one fitting subnet in each of these families and none in another."""
    return len(cidrs) == len(families) and all(n.fits(cidr) for n, cidr in zip(families, cidrs, strict=True))


def choose_subnets(
    pool: SubnetPool, request: LeaseRequest, draw: Draw, former: Sequence[Network] = ()
) -> tuple[Network, ...]:
    """One free subnet for each family that is asked for: the previous one, else a `former` one, else any.

    Each family is chosen for itself, so that a network which gets a second family keeps its subnets in the first.
    Raises Exhausted, with the numbers, when a family has none left.
    """
    return tuple(_choose(each, request, draw, former) for each in pool.families if request.part(each.network.family))


def _choose(pool: FamilyPool, request: LeaseRequest, draw: Draw, former: Sequence[Network]) -> Network:
    part = request.part(pool.network.family)
    previous = [part.previous] if part and part.previous else []
    kept = next(filter(pool.is_free, chain(previous, former)), None)
    if kept is not None:
        return kept
    candidates = pool.candidates(CANDIDATES)
    if not candidates:
        raise Exhausted(_numbers(pool))
    return pool.subnet(candidates[draw(len(candidates))])


def _numbers(pool: FamilyPool) -> str:
    network, usage = pool.network, pool.usage
    return (
        f"no {network.family} subnet is free: {usage.used} of {usage.total} /{network.subnet_length} subnets of "
        f"{network.cidr} are taken ({usage.leased} leased, {usage.reserved} reserved, {usage.blocked} overlapped by "
        "something else); release or reclaim some, or widen SubnetMin and SubnetMax or the network"
    )
