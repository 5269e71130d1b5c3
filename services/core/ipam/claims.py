"""Every key of a store that takes a subnet, found by node, by address, MAC or key; and whose it is. No IO."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flannelette.services.core.errors import NotFound
from flannelette.services.core.family import Address, Family, Network
from flannelette.services.core.ipam.subnet_pool import SubnetPool, Usage, Use, UsedRange
from flannelette.services.core.leases.conflicts import Identity, Rank, identities_in, identities_of, rank
from flannelette.services.core.leases.lease import FamilyRequest, Lease
from flannelette.services.core.network import FamilyNetwork, NetworkConfig, contains

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease, a reservation, or what blocks a subnet without being either."""

    name: str
    node: str
    """The node that holds it, empty if none does."""
    cidrs: tuple[Network, ...]
    addresses: tuple[Address, ...]
    """What it publishes. Empty: a reservation that nobody uses now, or a key whose value is refused."""
    reserved: bool = False
    bound: bool = False
    """Reserved for `node` by an operator: no other node gets it, also when this one is gone."""
    identities: tuple[Identity, ...] = ()
    """What it publishes that no other node may have: public addresses (but WireGuard's), MACs or keys."""
    claim_order: int = 0
    """See Lease."""

    @property
    def rank(self) -> Rank:
        """The claim's rank among conflicting ones (services/core/leases/conflicts.py); the lowest wins."""
        return rank(self.node, self.claim_order, self.name)

    @property
    def in_use(self) -> bool:
        """A node holds it and publishes from it."""
        return bool(self.node and self.addresses)

    @property
    def taken(self) -> list[UsedRange]:
        """What it takes, and as what it counts."""
        use = Use.RESERVED if self.reserved else Use.LEASED if self.addresses else Use.BLOCKED
        return [(cidr, use) for cidr in self.cidrs]


def claim_of(lease: Lease) -> Claim:
    """What a lease claims. A reservation that names a node is bound to it."""
    is_bound, identities = lease.reserved and bool(lease.node), identities_of(lease)
    return Claim(lease.name, lease.node, lease.cidrs, lease.addresses, lease.reserved, is_bound, identities)


def is_own(lease: Claim | Lease, node: str, parts: Collection[FamilyRequest] = ()) -> bool:
    """Whether a lease is this node's, which asks for these parts: the one answer, whatever the store.

    It is where the node holds it. A lease that nobody is known to hold, such as one of a flanneld, is the node's
    that `publishes_same`. The store says who holds a lease: etcd by the holder key (`read_entry`), the embedded
    store by its row, Kubernetes by the name of the Node, a relay by what the lease service above says.
    """
    return lease.node == node if lease.node else publishes_same(lease, parts)


def publishes_same(lease: Claim | Lease, parts: Collection[FamilyRequest]) -> bool:
    """Whether a lease has a public address of these parts, and their key too where nodes may share addresses."""
    if all(part.public_address not in lease.addresses for part in parts):
        return False
    only_one_has = lease.identities if isinstance(lease, Claim) else identities_of(lease)
    return not set(everything_in(parts)).isdisjoint(only_one_has)


def everything_in(parts: Iterable[FamilyRequest]) -> tuple[Identity, ...]:
    """The addresses, MACs and keys of a request, also those that nodes may share: to look leases up."""
    return identities_in(parts, "")


def require_held(claims: "Claims", node: str, name: str) -> Claim:
    """The lease of this name, which the node holds. Raises NotFound."""
    claim = claims.get(name)
    if claim is None or not is_own(claim, node):
        raise not_held(node, name)
    return claim


def not_held(node: str, name: str) -> NotFound:
    """The answer to a node that renews a lease which is another's, or gone."""
    return NotFound(f"node {node} does not hold lease {name} any more: acquire a lease again")


class Claims:
    """All claims by name, beside what is taken of the network. A change costs the same however many there are."""

    def __init__(self) -> None:
        self._claims: dict[str, Claim] = {}
        self._of_node: dict[str, set[str]] = {}
        self._of_identity: dict[Identity, tuple[str, ...]] = {}
        """The names of the claims that have an identity, nearly always one."""
        self._pool: SubnetPool | None = None

    @property
    def pool(self) -> SubnetPool | None:
        """What is taken of the network; None without one."""
        return self._pool

    def lease_from(self, network: NetworkConfig | None) -> None:
        """Sets the network from which subnets are given; None: none are."""
        if network is None:
            self._pool = None
        elif self._pool is None or self._pool.network != network:
            taken = (taken for claim in self._claims.values() for taken in claim.taken)
            self._pool = SubnetPool(network, taken)

    def usage(self, family: Family) -> Usage:
        """How full the network is in one family; all zero where it has none."""
        families = self._pool.families if self._pool else ()
        return next((pool.usage for pool in families if pool.network.family is family), Usage(0))

    def get(self, name: str) -> Claim | None:
        """The claim of this name."""
        return self._claims.get(name)

    def of_node(self, node: str) -> list[Claim]:
        """What the node holds, by name."""
        return self._named(self._of_node.get(node, ()))

    def of_identity(self, identity: Identity) -> list[Claim]:
        """What publishes this, by name."""
        return self._named(self._of_identity.get(identity, ()))

    def overlapping(self, cidr: Network, network: Network) -> list[Claim]:
        """What takes any part of this subnet of that network, by name. Looks at all: for an operator's calls."""
        found = (
            claim.name
            for claim in self._claims.values()
            if any(
                cidr.version == taken.version and cidr.overlaps(taken) and not contains(taken, network)
                for taken in claim.cidrs
            )
        )
        return self._named(found)

    def obstacles(self, network: FamilyNetwork) -> list[str]:
        """The names of what blocks subnets of this network without being one, the widest first. Looks at all."""
        found = (
            (cidr.prefixlen, int(cidr.network_address), claim.name)
            for claim in self._claims.values()
            for cidr in claim.cidrs
            if (cidr.prefixlen != network.subnet_length or claim.taken[0][1] is Use.BLOCKED)
            and cidr.version == network.family.version
            and cidr.overlaps(network.cidr)
            and not contains(cidr, network.cidr)
        )
        return [name for _, _, name in sorted(found)]

    def all(self) -> list[Claim]:
        """Every one, by name."""
        return self._named(self._claims)

    def put(self, claim: Claim) -> None:
        """Adds a claim, or replaces the one of the same name."""
        if self._claims.get(claim.name) == claim:
            return
        self.drop(claim.name)
        self._claims[claim.name] = claim
        self._of_node.setdefault(claim.node, set()).add(claim.name)
        for identity in claim.identities:
            names = self._of_identity.get(identity, ())
            if claim.name not in names:
                self._of_identity[identity] = (*names, claim.name)
        if self._pool is not None:
            for cidr, use in claim.taken:
                self._pool.add(cidr, use)

    def drop(self, name: str) -> None:
        """Removes a claim, if there is one of this name."""
        claim = self._claims.pop(name, None)
        if claim is None:
            return
        _discard(self._of_node, claim.node, name)
        for identity in claim.identities:
            left = tuple(other for other in self._of_identity.pop(identity, ()) if other != name)
            if left:
                self._of_identity[identity] = left
        if self._pool is not None:
            for cidr, use in claim.taken:
                self._pool.remove(cidr, use)

    def _named(self, names: Iterable[str]) -> list[Claim]:
        return [self._claims[name] for name in sorted(names)]


def _discard(index: dict[Key, set[str]], key: Key, name: str) -> None:
    names = index[key]
    names.discard(name)
    if not names:
        del index[key]


def is_another(machine: str, holder: str) -> bool:
    """Whether a machine is known to be another one than the holder of a lease; an unknown token is nobody's."""
    return bool(machine and holder) and machine != holder


def name_taken(node: str, lease: str = "", addresses: Sequence[Address] = ()) -> str:
    """The error for a machine that has the name of another one, which is alive and holds the lease, where known."""
    holds = f", which holds lease {lease}" if lease else ""
    where = f" with address {addresses[0]}" if addresses else ""
    return (
        f"another machine is node {node}{holds}{where} and is alive: give this one a name of its own (`hostnamectl "
        "set-hostname NAME`, or --node=NAME for its services) and restart its services; if it replaces the other "
        f"one, it gets the name a minute after the last sign of life of that, or at once by `flannelette release "
        f"--node={node}`"
    )
