"""Chooses the subnet of a node. Pure: the choice among equals is an argument."""

from collections.abc import Callable, Sequence
from itertools import chain

from flannelette.services.core.errors import Exhausted
from flannelette.services.core.family import Network
from flannelette.services.core.ipam.subnet_pool import FamilyPool, SubnetPool
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.network import FamilyNetwork, NetworkConfig

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
