"""Conflicts between leases that claim the same subnet, MAC, key or public address: one rule for every service.

A lease is data from the network: a node may publish a claim of another node, by mistake or to receive its packets.
The rule (ADR 24): leases are taken in the order of their rank; each keeps its claim, unless a lease before it in the
order has kept the same. An index finds overlapping subnets without comparing each with each.
"""

from base64 import b64decode, b64encode
from binascii import Error
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from ipaddress import ip_address, ip_network
from sys import maxsize
from typing import Final, TypeAlias

from flannelette.services.core.backend_types import shares_addresses
from flannelette.services.core.family import Address, Network
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import BackendData, FamilyRequest, Lease, Subnet, VxlanData, WireguardData
from flannelette.services.core.network import NetworkConfig

Entry: TypeAlias = tuple[int, int, int, str]
"""Version, first address, prefix length, owner: in this order, what contains a subnet stands before it."""


class OverlapIndex:
    """Subnets and their owners. Adding, removing and asking take a few microseconds among 10,000."""

    def __init__(self, rows: Iterable[tuple[Network, str]] = ()) -> None:
        self._entries = sorted(_entry(cidr, owner) for cidr, owner in rows)
        self._lengths = Counter((version, length) for version, _, length, _ in self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, cidr: Network, owner: str) -> None:
        """Records that an owner has a subnet."""
        insort(self._entries, _entry(cidr, owner))
        self._lengths[cidr.version, cidr.prefixlen] += 1

    def remove(self, cidr: Network, owner: str) -> None:
        """Takes back one `add` of the same."""
        entry = _entry(cidr, owner)
        del self._entries[bisect_left(self._entries, entry)]
        self._lengths[cidr.version, cidr.prefixlen] -= 1
        if not self._lengths[cidr.version, cidr.prefixlen]:
            del self._lengths[cidr.version, cidr.prefixlen]

    def owners(self, cidr: Network) -> Iterator[str]:
        """Yields the owners of all subnets that overlap this one, an owner once for each overlap: what contains it,
        the widest first, then the same subnet and what lies inside, by address.
        """
        version, length, first = cidr.version, cidr.prefixlen, int(cidr.network_address)
        for wider in sorted(n for v, n in self._lengths if v == version and n < length):
            start = first >> (cidr.max_prefixlen - wider) << (cidr.max_prefixlen - wider)
            yield from self._from((version, start, wider, ""), (version, start, wider))
        yield from self._from(
            (version, first, length, ""), (version, int(cidr.broadcast_address), cidr.max_prefixlen)
        )

    def any(self) -> bool:
        """Whether any two overlap."""
        version, reach = 0, -1
        for each, first, length, _ in self._entries:
            if each != version:
                version, reach = each, -1
            if first <= reach:
                return True
            reach = first + (1 << ((32 if version == 4 else 128) - length)) - 1
        return False

    def _from(self, start: Entry, last: tuple[int, int, int]) -> Iterator[str]:
        for position in range(bisect_left(self._entries, start), len(self._entries)):
            entry = self._entries[position]
            if entry[:3] > last:
                return
            yield entry[3]


def _entry(cidr: Network, owner: str) -> Entry:
    return cidr.version, int(cidr.network_address), cidr.prefixlen, owner


Rank: TypeAlias = tuple[bool, bool, int, str]
"""Precedence: the lesser rank wins."""

Claim: TypeAlias = tuple[Lease, Subnet]
"""A lease and one of its subnets: with public address and MAC or key, what the lease claims in one family."""

Identity: TypeAlias = Hashable
"""A value that only one node may have: a MAC as text, a public address as bytes; else its kind and its value."""


@frozen
class Loss:
    """A claim that a lease has lost to another lease."""

    kind: str
    """One of KINDS; the label of a metric."""
    reason: str
    """A phrase: `MAC 06:… is that of the lease …, which is older`."""
    lease: Lease
    winner: Lease
    """The lease that keeps the claim."""


def rank(node: str, claim_order: int, name: str, cluster: str = "") -> Rank:
    """The order of leases: own before imported, known node before unknown node, then the older claim, then the name.

    The rank depends on the lease alone, so all nodes with the same leases decide alike.
    """
    return (bool(cluster), not node, claim_order or maxsize, name)


def rank_of(lease: Lease) -> Rank:
    """The rank of a lease."""
    return rank(lease.node, lease.claim_order, lease.name, lease.cluster)


def identities(version: int, address: Address | None, data: BackendData | None, backend_type: str) -> list[Identity]:
    """The values of a subnet that only one node may have. The public address is none where nodes may share it."""
    found: list[Identity] = []
    if address is not None and not shares_addresses(backend_type):
        found.append(address.packed)
    if isinstance(data, VxlanData):
        mac = data.mac.lower()
        found.append(mac if version == 4 else (_MAC, mac))
    elif isinstance(data, WireguardData):
        found.append((_KEY, _canonical(data.public_key)))
    return found


def identities_of(lease: Lease) -> tuple[Identity, ...]:
    """The values of a lease that only one node may have."""
    kind = lease.backend_type
    return tuple(each for s in lease.subnets for each in identities(s.cidr.version, s.public_address, s.data, kind))


def identities_in(parts: Iterable[FamilyRequest], backend_type: str) -> tuple[Identity, ...]:
    """The values of these requests that only one node may have."""
    return tuple(
        each for w in parts for each in identities(w.public_address.version, w.public_address, w.data, backend_type)
    )


def in_words(identity: Identity) -> tuple[str, str]:
    """The kind and the value of an identity, as text."""
    if isinstance(identity, bytes):
        return "public address", str(ip_address(identity))
    kind, value = identity if isinstance(identity, tuple) else (_MAC, identity)
    return "MAC" if kind == _MAC else "public key", b64encode(value).decode() if isinstance(value, bytes) else str(
        value
    )


def losses(network: NetworkConfig, claims: Iterable[Claim]) -> Mapping[tuple[str, int], Loss]:
    """The lost claims among these, by the name of the lease and the IP version."""
    claims = list(claims)
    kept, leases = ConflictIndex(network), dict[str, Lease]()
    found = _superseded(claims)
    for claim in sorted(claims, key=lambda claim: rank_of(claim[0])):
        lease, subnet = claim
        if (lease.name, subnet.cidr.version) in found:
            continue
        kind, name = next(kept.conflicts(claim), ("", ""))
        if kind:
            winner = leases[name]
            found[lease.name, subnet.cidr.version] = Loss(kind, _words(kind, claim, winner), lease, winner)
        else:
            kept.add(claim)
            leases[lease.name] = lease
    return found


def _superseded(claims: Iterable[Claim]) -> dict[tuple[str, int], Loss]:
    """Where a key has one subnet of each family: the older ones of a node that has several, as after it moved."""
    newest: dict[Hashable, Claim] = {}
    older: list[tuple[Hashable, Claim]] = []
    for claim in claims:
        lease, subnet = claim
        if not shares_addresses(lease.backend_type):
            continue
        end = lease.node, subnet.cidr.version, subnet.public_address, subnet.data
        other = newest.get(end)
        if other is None:
            newest[end] = claim
            continue
        first, last = sorted((other, claim), key=lambda each: (each[0].claim_order, each[0].name))
        newest[end] = last
        older.append((end, first))
    return {
        (lease.name, subnet.cidr.version): Loss(
            _SUPERSEDED,
            f"public key {getattr(subnet.data, 'public_key', '')} is in the newer lease {newest[end][0].name} too",
            lease,
            newest[end][0],
        )
        for end, (lease, subnet) in older
    }


class ConflictIndex:
    """An index of claims by subnet and identity. Each operation takes a few microseconds among 10,000 claims."""

    def __init__(self, network: NetworkConfig, claims: Iterable[Claim] = ()) -> None:
        claims = list(claims)
        self._bounds = {
            n.family.version: [(int(c.network_address), int(c.broadcast_address)) for c in network.cidrs(n.family)]
            for n in network.families
        }
        self._subnets = OverlapIndex((subnet.cidr, lease.name) for lease, subnet in claims)
        # Empty unless the network, or what may be imported, contains the underlay, which is rare.
        self._addresses = OverlapIndex(
            (inner, lease.name) for lease, subnet in claims for inner in self._inner(subnet)
        )
        self._holders: dict[Identity, Lease | tuple[Lease, ...]] = {}
        """The leases with this identity; nearly always one."""
        self._are_shared = sum(self._hold(claim) for claim in claims) > 0  # not any(): all are held

    def any(self) -> bool:
        """Whether two of the claims given at construction conflict."""
        return self._are_shared or len(self._addresses) > 0 or self._subnets.any()

    def add(self, claim: Claim) -> bool:
        """Whether the claim conflicts with another, so that `losses` may have changed."""
        is_conflicting = next(self.conflicts(claim), None) is not None
        lease, subnet = claim
        self._subnets.add(subnet.cidr, lease.name)
        for inner in self._inner(subnet):
            self._addresses.add(inner, lease.name)
        self._hold(claim)
        return is_conflicting

    def remove(self, claim: Claim) -> bool:
        """Whether the claim conflicts with another, so that `losses` may have changed."""
        lease, subnet = claim
        self._subnets.remove(subnet.cidr, lease.name)
        for inner in self._inner(subnet):
            self._addresses.remove(inner, lease.name)
        for identity in _identities(claim):
            left = tuple(other for other in self._held(identity) if other.name != lease.name)
            if left:
                self._holders[identity] = left
            else:
                self._holders.pop(identity, None)
        return next(self.conflicts(claim), None) is not None

    def conflicts(self, claim: Claim) -> Iterator[tuple[str, str]]:
        """The conflicts of a claim, in the index or not: the kind of each, and the name of the other lease."""
        lease, subnet = claim
        for name in self._subnets.owners(subnet.cidr):
            yield "overlap", name
        for inner in self._inner(subnet):
            for name in self._subnets.owners(inner):
                if name != lease.name:
                    yield "inner-address", name
        if len(self._addresses):
            for name in self._addresses.owners(subnet.cidr):
                if name != lease.name:
                    yield "peer-address", name
        yield from self._same_identity(claim)

    def is_claimed(self, claim: Claim) -> bool:
        """Whether another lease in the index has the address, MAC or key of a claim."""
        return next(self._same_identity(claim), None) is not None

    def _same_identity(self, claim: Claim) -> Iterator[tuple[str, str]]:
        """Leases with an identity of this claim that conflict with it."""
        for identity in _identities(claim):
            for other in self._held(identity):
                if _is_rival(claim, other):
                    yield _kind(identity), other.name

    def _hold(self, claim: Claim) -> bool:
        """Adds the identities of a claim. Whether it conflicts with another lease that has one of them."""
        lease, _ = claim
        is_shared = False
        for identity in _identities(claim):
            held = self._held(identity)
            if held:
                is_shared |= any(_is_rival(claim, other) for other in held)
            self._holders[identity] = (*held, lease) if held else lease
        return is_shared

    def _held(self, identity: Identity) -> tuple[Lease, ...]:
        held = self._holders.get(identity, ())
        return held if isinstance(held, tuple) else (held,)

    def _inner(self, subnet: Subnet) -> Iterator[Network]:
        """The public address, if it lies where leases may lie."""
        address = subnet.public_address
        if address is not None:
            number = int(address)
            if any(first <= number <= last for first, last in self._bounds.get(address.version, ())):
                yield ip_network(address)


def _identities(claim: Claim) -> list[Identity]:
    lease, subnet = claim
    return identities(subnet.cidr.version, subnet.public_address, subnet.data, lease.backend_type)


def _is_rival(claim: Claim, other: Lease) -> bool:
    """Whether a lease that has an identity of the claim conflicts with it.

    Two leases of one node with the same end point do not, unless a key may have one subnet only.
    """
    lease, subnet = claim
    return other.name != lease.name and not (
        not shares_addresses(lease.backend_type)
        and lease.node == other.node
        and any(
            (subnet.public_address, subnet.data) == (theirs.public_address, theirs.data)
            for theirs in other.subnets
            if theirs.cidr.version == subnet.cidr.version
        )
    )


def _kind(identity: Identity) -> str:
    if isinstance(identity, bytes):
        return "shared-address"
    return identity[0] if isinstance(identity, tuple) else _MAC


def _words(kind: str, claim: Claim, winner: Lease) -> str:
    lease, subnet = claim
    whose = f"the lease {winner.name}" + (f" of node {winner.node}" if winner.node else "")
    if lease.cluster and not winner.cluster:
        why = "which is of this cluster"
    elif winner.node and not lease.node:
        why = "whose node is known"
    elif lease.claim_order != winner.claim_order:
        why = "which is older"
    else:
        why = "which goes first by its name"
    theirs = next((s.cidr for s in winner.subnets if s.cidr.version == subnet.cidr.version), "")
    what = {
        "overlap": f"subnet {subnet.cidr} overlaps {theirs}",
        "peer-address": f"subnet {subnet.cidr} covers the public address",
        "inner-address": f"public address {subnet.public_address} lies in the subnet {theirs}",
        "shared-address": f"public address {subnet.public_address} is that",
        _MAC: f"MAC {getattr(subnet.data, 'mac', '')} is that",
        _KEY: f"public key {getattr(subnet.data, 'public_key', '')} is that",
    }[kind]
    return f"{what} of {whose}, {why}"


def _canonical(key: str) -> str | bytes:
    """A public key in a form in which equal keys are equal, however they are encoded."""
    try:
        return b64decode(key)
    except (Error, ValueError):
        return key


_MAC: Final = "shared-mac"
_KEY: Final = "shared-key"
_SUPERSEDED: Final = "superseded"

KINDS: Final = frozenset({"overlap", "peer-address", "inner-address", "shared-address", _MAC, _KEY, _SUPERSEDED})
"""The kinds of conflicts."""
