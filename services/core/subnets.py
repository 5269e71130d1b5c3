"""Which subnet a node gets: pure, the choice among equals is an argument."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from services.core.errors import Exhausted
from services.core.family import Network
from services.core.lease import Lease, LeaseRequest, Wish
from services.core.network import FamilyNetwork, NetworkConfig

Draw = Callable[[int], int]
"""Given n, any number from 0 to n-1; `random.randrange` in life, anything in a test."""

CANDIDATES = 100
"""flannel draws among this many free subnets, from SubnetMin upwards, so that racing nodes rarely collide."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How full a network is, in subnets."""

    total: int
    used: int

    @property
    def free(self) -> int:
        """Subnets that may still be leased."""
        return self.total - self.used


def fits(network: NetworkConfig, lease: Lease) -> bool:
    """Whether a lease has one fitting subnet in each enabled family and none in another."""
    cidrs = [subnet.cidr for subnet in lease.subnets]
    return len(cidrs) == len(network.families) and all(
        n.fits(cidr) for n, cidr in zip(network.families, cidrs, strict=True)
    )


def choose_subnets(
    network: NetworkConfig, request: LeaseRequest, taken: Sequence[Network], draw: Draw
) -> tuple[Network, ...]:
    """One subnet per enabled family: the previous ones if all are free and fit, else free ones.

    Overlaps nothing in `taken`. Raises Exhausted, with the numbers, when a family has none left.
    """
    previous = tuple(_previous(n, request.wish(n.family), taken) for n in network.families)
    kept = tuple(cidr for cidr in previous if cidr is not None)
    if len(kept) == len(previous):
        return kept
    return tuple(_free(n, taken, draw) for n in network.families)


def usage(network: FamilyNetwork, taken: Iterable[Network]) -> Usage:
    """How full one family is; a taken network counts every subnet that it touches once."""
    if network.subnet_min is None or network.subnet_max is None:
        return Usage(0, 0)
    size = 1 << (network.family.bits - network.subnet_length)
    low, high = int(network.subnet_min), int(network.subnet_max)
    used = sum((last - first) // size + 1 for first, last in _occupied(network, taken, low, high, size))
    return Usage((high - low) // size + 1, used)


def _previous(network: FamilyNetwork, wish: Wish | None, taken: Sequence[Network]) -> Network | None:
    cidr = wish.previous if wish else None
    if cidr is None or not network.fits(cidr):
        return None
    return None if any(cidr.version == t.version and cidr.overlaps(t) for t in taken) else cidr


def _free(network: FamilyNetwork, taken: Sequence[Network], draw: Draw) -> Network:
    assert network.subnet_min is not None and network.subnet_max is not None  # noqa: S101, PT018 - a store that leases has both
    size = 1 << (network.family.bits - network.subnet_length)
    low, high = int(network.subnet_min), int(network.subnet_max)
    candidates: list[int] = []
    start = low
    for first, last in [*_occupied(network, taken, low, high, size), (high + size, high + size)]:
        room = min((first - start) // size, CANDIDATES - len(candidates))
        candidates.extend(start + i * size for i in range(max(room, 0)))
        start = last + size
        if len(candidates) >= CANDIDATES:
            break
    if not candidates:
        seen = usage(network, taken)
        raise Exhausted(
            f"no {network.family} subnet is free: {seen.used} of {seen.total} /{network.subnet_length} subnets of "
            f"{network.cidr} are leased or reserved; release some, or widen SubnetMin and SubnetMax or the network"
        )
    chosen = candidates[draw(len(candidates))]
    return type(network.cidr)((chosen, network.subnet_length))


def _occupied(
    network: FamilyNetwork, taken: Iterable[Network], low: int, high: int, size: int
) -> list[tuple[int, int]]:
    """Disjoint, ascending (first, last) subnet addresses in `low`..`high` that `taken` touches."""
    spans = sorted(
        (
            max(low, int(t.network_address) // size * size),
            min(high, int(t.broadcast_address) // size * size),
        )
        for t in taken
        if t.version == network.family.version
    )
    merged: list[tuple[int, int]] = []
    for first, last in spans:
        if first > last:
            continue
        if merged and first <= merged[-1][1] + size:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return merged
