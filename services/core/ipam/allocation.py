"""Chooses the lease of a node: the order of choice of AcquireLease. Pure; chance and signs of life are arguments."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from flannelette.services.core.errors import Exhausted, InvalidInput, NotYet
from flannelette.services.core.family import Network, family_of
from flannelette.services.core.ipam.claims import Claim, Claims, everything_in, is_own
from flannelette.services.core.ipam.subnet_pool import Draw, SubnetPool, Use, all_fit, choose_subnets
from flannelette.services.core.leases.conflicts import Identity, identities_in, in_words
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, Subnet, lease_key
from flannelette.services.core.leases.network_moves import takes_away
from flannelette.services.core.network import NetworkConfig

_MOST_NAMED: Final = 3
_EVERYTHING: Final = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
IsAlive = Callable[[str], bool]
"""Whether a node's dataplane is there, as far as anybody can know."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """The lease that a node gets, and what is given up for it."""

    lease: Lease
    """Complete but for its time."""
    current: Claim | None
    """What is under its name now; None: it is new."""
    given_up: tuple[Claim, ...]
    """What goes for it: what the node held and does not fit or is one too many, and what dead rivals held."""
    rivals: frozenset[str] = frozenset()
    """Nodes that are not alive and lose a claim to this one."""


def allocate(claims: Claims, pool: SubnetPool, request: LeaseRequest, draw: Draw, is_alive: IsAlive) -> Allocation:
    """Chooses the lease of a node, in this order: the subnet it holds; a lease with its address that nobody holds;
    its previous one; a free one.

    What it holds and publishes it keeps, also where the network has no room for that any more: it is for an operator
    to carry that out (ADR 25).

    Raises NotYet when another node that is alive holds one of its public addresses, MACs or keys, Exhausted when no
    subnet is free, InvalidInput when the request lacks an address that the network needs: IPv6 beside IPv4 may be
    missing, and the lease then has no subnet of it.
    """
    network = pool.network
    # A node that publishes from one of its subnets stays there, also if an operator reserves it another one.
    own = sorted(claims.of_node(request.node), key=lambda claim: not claim.addresses)
    kept = _kept(network, own, request)
    lost = () if own else _lost(network, claims, request)
    parts = _parts_in(kept.cidrs if kept else lost, request) or _parts(network, own, request)
    families = [n for n in network.families if request.part(n.family)]
    _refuse_what_others_have(claims, parts, request, is_alive)
    wanted = identities_in(parts, request.backend_type)
    rivals = [claim for claim in rivals_of(claims, request.node, wanted) if not is_alive(claim.node)]
    found = [claim for each in everything_in(parts) for claim in claims.of_identity(each) if claim not in own]
    unheld = [claim for claim in dict.fromkeys(found) if is_own(claim, request.node, parts)]
    inheritable = [claim for claim in rivals if not claim.bound]
    candidates = (claim for claim in (*own, *unheld, *inheritable) if claim.addresses or claim.reserved)
    current = kept or next((claim for claim in candidates if not lost and all_fit(families, claim.cidrs)), None)
    gone = [claim for claim in (*own, *rivals) if claim is not current and (claim.addresses or not claim.bound)]
    if current is None:
        first = parts[0].public_address  # by which a flanneld knows its own lease
        gone += [claim for claim in unheld if not claim.reserved and first in claim.addresses]
        freed = [taken for claim in gone if not claim.reserved for taken in claim.taken]
        with pool.as_if(gone=freed, also=[(cidr, Use.BLOCKED) for cidr in request.excluded]):
            try:
                former = [cidr for claim in own for cidr in claim.cidrs]
                cidrs = lost or choose_subnets(pool, request, draw, former)
            except Exhausted as error:
                raise Exhausted(f"{error}{_in_the_way(claims, pool)}") from None
    else:
        cidrs = current.cidrs
    lease = _lease(request, cidrs, parts, reserved=current is not None and current.reserved)
    losers = {claim.node for claim in (*gone, *([current] if current else []))} - {"", request.node}
    return Allocation(lease, current, tuple(dict.fromkeys(gone)), frozenset(losers))


def rivals_of(claims: Claims, node: str, wanted: Iterable[Identity]) -> tuple[Claim, ...]:
    """What other nodes hold with something that this node wants to publish."""
    found = (claim for identity in wanted for claim in claims.of_identity(identity))
    return tuple(dict.fromkeys(claim for claim in found if claim.node not in ("", node)))


def _kept(network: NetworkConfig, own: Sequence[Claim], request: LeaseRequest) -> Claim | None:
    """What the node publishes and the network would take away, unless it has something beside that fits."""
    used = [claim for claim in own if claim.addresses]
    if any(not takes_away(network, claim.cidrs) for claim in used):
        return None
    return next((claim for claim in used if len(_parts_in(claim.cidrs, request)) == len(claim.cidrs)), None)


def _lost(network: NetworkConfig, claims: Claims, request: LeaseRequest) -> tuple[Network, ...]:
    """What the store has lost of the node's and the network would take away, if it is still free."""
    cidrs = request.lost
    if not takes_away(network, cidrs) or len(_parts_in(cidrs, request)) < len(cidrs):
        return ()
    return () if any(claims.overlapping(cidr, _EVERYTHING[cidr.version]) for cidr in cidrs) else cidrs


def _parts_in(cidrs: Iterable[Network], request: LeaseRequest) -> tuple[FamilyRequest, ...]:
    return tuple(part for cidr in cidrs if (part := request.part(family_of(cidr))))


def _in_the_way(claims: Claims, pool: SubnetPool) -> str:
    """What takes room of the network and is no subnet of it, or no lease at all."""
    if not any(pool.usage.blocked for pool in pool.families):
        return ""
    names = [name for pool in pool.families for name in claims.obstacles(pool.network)]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return (
        f"; these entries overlap its subnets: {', '.join(names[:_MOST_NAMED])}{more}; delete those that are wrong"
        if names
        else ""
    )


def _parts(network: NetworkConfig, own: Sequence[Claim], request: LeaseRequest) -> tuple[FamilyRequest, ...]:
    """The families of a lease: without IPv6 if the node has no address of it, unless a subnet of each is reserved."""
    parts = tuple(part for n in network.families if (part := request.part(n.family)))
    is_reserved = any(claim.reserved for claim in own)
    if len(parts) < len(network.families) and (is_reserved or request.part(network.families[0].family) is None):
        missing = next(n.family for n in network.families if request.part(n.family) is None)
        raise InvalidInput(
            f"the network has {missing}, and the request of node {request.node} has no {missing} public address: "
            "give the node one, or disable the family in the network configuration"
        )
    return parts


def _refuse_what_others_have(
    claims: Claims, parts: Sequence[FamilyRequest], request: LeaseRequest, is_alive: IsAlive
) -> None:
    """Raises NotYet where the rule for claims (services/core/leases/conflicts.py) gives it to another node.

    A lease that nobody is known to hold counts as living until it runs out, unless it is this node's own (`is_own`).
    """
    node, wanted = request.node, identities_in(parts, request.backend_type)
    for identity in sorted(wanted, key=lambda each: not isinstance(each, bytes)):  # addresses first
        holders = claims.of_identity(identity)
        mine = min((claim.rank for claim in holders if claim.node == node), default=None)
        for claim in holders:
            is_others = not is_own(claim, node, parts) and (not claim.node or is_alive(claim.node))
            if is_others and not (mine and mine < claim.rank):
                raise NotYet(held_by(claim, identity, node))


def require_own(claims: Claims, name: str, is_alive: IsAlive) -> None:
    """Raises NotYet if what a lease publishes is a living node's by the rule for claims."""
    mine = claims.get(name)
    for identity in mine.identities if mine else ():
        for claim in claims.of_identity(identity):
            if mine and claim.node not in ("", mine.node) and claim.rank < mine.rank and is_alive(claim.node):
                raise NotYet(held_by(claim, identity, mine.node))


def held_by(claim: Claim, identity: Identity, node: str, way_out: str = "") -> str:
    """Why a node cannot have what another claim has; `way_out` where no dataplane is to be stopped for it."""
    kind, value = in_words(identity)
    other = "address (--public-ip, --iface)" if isinstance(identity, bytes) else f"{kind} (a cloned machine has both)"
    if not claim.node:
        who = f"the lease {claim.name}, whose holder is unknown, publishes it with {claim.addresses[0]}"
        way_out = f"`flannelette reclaim {claim.name}`, if its node is gone"
    else:
        who = f"node {claim.node} holds it with lease {claim.name} and is alive"
    way_out = way_out or (
        f"stop the dataplane of {claim.node}: a minute after its last sign of life the {kind.split()[-1]} is free"
    )
    return f"node {node} cannot have the {kind} {value}: {who}; give one of the two another {other}, or {way_out}"


def _lease(
    request: LeaseRequest, cidrs: tuple[Network, ...], parts: tuple[FamilyRequest, ...], *, reserved: bool
) -> Lease:
    subnets = (Subnet(cidr, part.public_address, part.data) for cidr, part in zip(cidrs, parts, strict=True))
    return Lease(lease_key(cidrs), request.node, tuple(subnets), request.backend_type, reserved=reserved)
