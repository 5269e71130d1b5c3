"""IPAM: which subnet a node gets, which subnets are free and taken, and what operators reserve and reclaim. Pure.

The pool has what is taken of a network and what is free; it is kept as leases come and go, so that asking costs no
listing. Claims are the keys of a store that take a subnet, found by node, by address, MAC or key. The lease of a node
is chosen in the order of AcquireLease. Chance and signs of life are arguments.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from ipaddress import ip_network
from itertools import chain
from typing import Final, TypeAlias, TypeVar

from flannelette.services.core.errors import AlreadyExists, Exhausted, InvalidInput, NotFound, NotYet
from flannelette.services.core.family import Address, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.conflicts import Identity, Rank, identities_in, identities_of, in_words, rank
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, Subnet, lease_key
from flannelette.services.core.leases.network_moves import takes_away
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


@frozen
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


Key = TypeVar("Key")


@frozen
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


_MOST_NAMED: Final = 3
_EVERYTHING: Final = {4: ip_network("0.0.0.0/0"), 6: ip_network("::/0")}
IsAlive = Callable[[str], bool]
"""Whether a node's dataplane is there, as far as anybody can know."""


@frozen
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


@frozen
class Reclaim:
    """The leases to be taken back: named ones, a node's, or those of all nodes not seen for so long."""

    names: tuple[str, ...] = ()
    node: str = ""
    unseen_seconds: float | None = None


@frozen
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
