"""What an operator does with subnets: reserve, unreserve, reclaim. Pure; signs of life are arguments."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flannelette.services.core.errors import AlreadyExists, InvalidInput, NotFound, NotYet
from flannelette.services.core.family import Network, family_of
from flannelette.services.core.ipam.claims import Claim, Claims
from flannelette.services.core.ipam.subnet_pool import SubnetPool
from flannelette.services.core.leases.lease import Lease, Subnet, lease_key


@dataclass(frozen=True, slots=True)
class Reclaim:
    """The leases to be taken back: named ones, a node's, or those of all nodes not seen for so long."""

    names: tuple[str, ...] = ()
    node: str = ""
    unseen_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Sighting:
    """What is known of a node."""

    alive: bool
    seen_at: float
    """Unix time until which it may have been connected; the time before this process started is not known."""


def set_aside(cidrs: Iterable[Network], node: str) -> Lease:
    """A reservation that nobody uses, of this node or (empty) of nobody: without an address, no peer sends there."""
    subnets = tuple(map(Subnet, sorted(cidrs, key=lambda cidr: cidr.version)))
    return Lease(lease_key(subnet.cidr for subnet in subnets), node, subnets, reserved=True)


def check_reservation(claims: Claims, pool: SubnetPool, cidrs: Sequence[Network], node: str) -> Claim | None:
    """What is under its name already: the same reservation, or the lease of that very node, which becomes one.

    None: nothing, it is to be made. Raises InvalidInput, AlreadyExists.
    """
    versions = [cidr.version for cidr in cidrs]
    if not cidrs or len(set(versions)) != len(versions):
        raise InvalidInput("cidrs must have one subnet, or one of each address family")
    networks = [_network_of(pool, cidr) for cidr in cidrs]
    missing = [n.family for n in pool.network.families if n.family.version not in versions]
    if node and missing:
        raise InvalidInput(
            f"node {node} needs an {missing[0]} subnet too, since the network has {missing[0]}: add one"
        )
    existing = claims.get(lease_key(cidrs))
    if existing and existing.node == node and (existing.reserved or node):
        return existing
    for claim in (found for pair in zip(cidrs, networks, strict=True) for found in claims.overlapping(*pair)):
        what = "reservation" if claim.reserved else "lease"
        holder = f" of node {claim.node}" if claim.node else ""
        raise AlreadyExists(f"{_text(cidrs)} overlaps the {what} {claim.name}{holder}: choose another, or free that")
    return None


def find_reservation(claims: Claims, name: str) -> Claim:
    """The reservation of this name. Raises NotFound."""
    claim = claims.get(name)
    if claim is None or not claim.reserved:
        what = "a lease, not a reservation" if claim else "no reservation"
        raise NotFound(f"{name} is {what}: `flannelette reservations` (ListLeases) shows which there are")
    return claim


def concerned(claims: Claims, wanted: Reclaim) -> list[Claim]:
    """The claims whose nodes have to be looked at. Raises InvalidInput, NotFound."""
    if sum((bool(wanted.names), bool(wanted.node), wanted.unseen_seconds is not None)) != 1:
        raise InvalidInput("give either names, or node, or unseen_for: these choose the leases to take back")
    if wanted.names:
        found = [claims.get(name) for name in wanted.names]
        for name, claim in zip(wanted.names, found, strict=True):
            if claim is None:
                raise NotFound(f"there is no lease {name}")
        return [claim for claim in found if claim]
    if wanted.node:
        held = [claim for claim in claims.of_node(wanted.node) if not claim.reserved]
        if not held:
            raise NotFound(f"node {wanted.node} holds no lease that could be taken back")
        return held
    return [claim for claim in claims.all() if claim.node and not claim.reserved]


def reclaimable(
    claims: Iterable[Claim], wanted: Reclaim, sight: Callable[[str], Sighting], now: float
) -> list[Claim]:
    """Selects the claims to take back. A named one that may not go raises NotYet; where all are asked for, it is left
    out.
    """
    chosen = []
    for claim in claims:
        if wanted.unseen_seconds is not None:
            sighting = sight(claim.node)
            if not sighting.alive and now - sighting.seen_at >= wanted.unseen_seconds:
                chosen.append(claim)
            continue
        if claim.reserved:
            raise NotYet(f"{claim.name} is a reservation: free it with ReleaseSubnet (flannelette unreserve)")
        if claim.node and sight(claim.node).alive:
            raise NotYet(f"node {claim.node}, which holds {claim.name}, is alive: stop its dataplane first")
        chosen.append(claim)
    return chosen


def _network_of(pool: SubnetPool, cidr: Network) -> Network:
    """The network that it is a subnet of. Raises InvalidInput."""
    n = pool.network.family(family_of(cidr))
    if n is None:
        raise InvalidInput(f"the network has no {family_of(cidr)}, so {cidr} cannot be reserved")
    if not n.fits(cidr):
        raise InvalidInput(
            f"{cidr} is not a subnet of the network {n.cidr}: reserve a /{n.subnet_length} from {n.subnet_min} to "
            f"{n.subnet_max}"
        )
    return n.cidr


def _text(cidrs: Iterable[Network]) -> str:
    return " and ".join(map(str, cidrs))
