"""A network change that would take subnets away from nodes: the moves that wait, and the network in force. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from ipaddress import collapse_addresses
from typing import Final

from flannelette.services.core.family import FAMILIES, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import FamilyNetwork, NetworkConfig, contains

_MOST_BESIDE: Final = 16
"""Networks beside in one family: each is two rules of the firewall."""


@frozen
class PendingMove:
    """A node keeps a lease for which the network configuration has no room."""

    node: str
    lease: str
    subnets: tuple[Network, ...]
    where: str
    """Where the node would move to, in words."""

    def __str__(self) -> str:
        subnets = " and ".join(map(str, self.subnets))
        return f"network change pending: {self.node} would move from {subnets} to {self.where}"


def takes_away(network: NetworkConfig, cidrs: Iterable[Network]) -> bool:
    """Whether a configuration has no room for one of these subnets of a lease. One that adds a family has."""
    return any((n := network.family(family_of(cidr))) is None or not n.fits(cidr) for cidr in cidrs)


def in_force(told: NetworkConfig, held: Sequence[Network], before: NetworkConfig | None) -> NetworkConfig:
    """The configuration in force on a node that holds these subnets, given the store's and the one before.

    The one before, as long as the new one would take its subnets away; and where the other nodes are is beside it.
    """
    if before is None or not takes_away(told, held) or takes_away(before, held):
        return told
    others = (*(n.cidr for n in told.families), *told.beside)
    return replace(before, beside=beside(before, others), imported=told.imported)


def beside(network: NetworkConfig, cidrs: Collection[Network]) -> tuple[Network, ...]:
    """What of these lies outside of the network in its families, joined where they adjoin, and in few pieces."""
    found: list[Network] = []
    for family in FAMILIES:
        enabled = network.family(family)
        if enabled is not None:
            outside = (c for c in cidrs if c.version == family.version and not contains(enabled.cidr, c))
            found += _few(_joined(outside))
    return tuple(found)


def pending_move(lease: Lease, network: NetworkConfig) -> PendingMove | None:
    """What is pending for the node that holds this lease; None: nothing."""
    if not lease.node or lease.cluster or lease.is_idle or not takes_away(network, lease.cidrs):
        return None
    gone = [cidr for cidr in lease.cidrs if takes_away(network, [cidr])]
    where = " and ".join(_where(network.family(family_of(cidr)), cidr) for cidr in gone)
    return PendingMove(lease.node, lease.name, lease.cidrs, where)


def pending_moves(leases: Mapping[str, Lease], network: NetworkConfig | None) -> list[PendingMove]:
    """Returns all pending moves, sorted by node."""
    found = (pending_move(lease, network) for lease in leases.values()) if network else ()
    return sorted((move for move in found if move), key=lambda move: (move.node, move.lease))


def hands_out(network: NetworkConfig) -> bool:
    """Whether the lease service chooses the subnets; else the store has them from elsewhere, as Kubernetes has."""
    return all(n.subnet_length for n in network.families)


def _where(n: FamilyNetwork | None, cidr: Network) -> str:
    if n is None:
        return f"no {family_of(cidr)} subnet"
    if not n.subnet_length:
        return f"a podCIDR in {n.cidr}, which only a new Node gets"
    return f"a /{n.subnet_length} from {n.subnet_min} to {n.subnet_max}"


def _few(pieces: list[Network]) -> list[Network]:
    """The same, or where these are too many, wider ones."""
    length = max((piece.prefixlen for piece in pieces), default=0)
    while len(pieces) > _MOST_BESIDE:
        length -= 1
        pieces = _joined(p.supernet(new_prefix=min(length, p.prefixlen)) for p in pieces)
    return pieces


def _joined(pieces: Iterable[Network]) -> list[Network]:
    return list(collapse_addresses(pieces))  # type: ignore[type-var]  # all are of one family
