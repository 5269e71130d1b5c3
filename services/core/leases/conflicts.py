"""Conflicts between leases that claim the same subnet, MAC, key or public address: one rule for every service.

A lease is data from the network: a node may publish a claim of another node, by mistake or to receive its packets.
The rule (ADR 24): leases are taken in the order of their rank; each keeps its claim, unless a lease before it in the
order has kept the same.
"""

from base64 import b64decode, b64encode
from binascii import Error
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from sys import maxsize
from typing import Final, TypeAlias

from services.core.family import Address, Network
from services.core.leases.lease import BackendData, FamilyRequest, Lease, Subnet, VxlanData, WireguardData
from services.core.leases.overlap_index import OverlapIndex
from services.core.network import NetworkConfig

Rank: TypeAlias = tuple[bool, int, str]
"""Precedence: the lesser rank wins."""

Claim: TypeAlias = tuple[Lease, Subnet]
"""A lease and one of its subnets: with public address and MAC or key, what the lease claims in one family."""

Identity: TypeAlias = Hashable
"""A value that only one node may have: a MAC as text, a public address as bytes; else its kind and its value."""


@dataclass(frozen=True, slots=True)
class Loss:
    """A claim that a lease has lost to another lease."""

    kind: str
    """One of KINDS; the label of a metric."""
    reason: str
    """A phrase: `MAC 06:… is that of the lease …, which is older`."""
    lease: Lease
    winner: Lease
    """The lease that keeps the claim."""


def rank(node: str, claim_order: int, name: str) -> Rank:
    """The order of leases: known node before unknown node, then the older claim, then the name.

    The rank depends on the lease alone, so all nodes with the same leases decide alike.
    """
    return (not node, claim_order or maxsize, name)


def rank_of(lease: Lease) -> Rank:
    """The rank of a lease."""
    return rank(lease.node, lease.claim_order, lease.name)


def identities(
    version: int, address: Address | None, data: BackendData | None, *, shares_addresses: bool = False
) -> list[Identity]:
    """The values of a subnet that only one node may have.

    With a backend that `shares_addresses`, nodes behind one NAT have the same public address.
    """
    found: list[Identity] = []
    if address is not None and not shares_addresses:
        found.append(address.packed)
    if isinstance(data, VxlanData):
        mac = data.mac.lower()
        found.append(mac if version == 4 else (_MAC, mac))
    elif isinstance(data, WireguardData):
        found.append((_KEY, _canonical(data.public_key)))
    return found


def identities_of(lease: Lease) -> tuple[Identity, ...]:
    """The values of a lease that only one node may have."""
    return tuple(each for s in lease.subnets for each in identities(s.cidr.version, s.public_address, s.data))


def identities_in(parts: Iterable[FamilyRequest]) -> tuple[Identity, ...]:
    """The values of these requests that only one node may have."""
    return tuple(each for w in parts for each in identities(w.public_address.version, w.public_address, w.data))


def in_words(identity: Identity) -> tuple[str, str]:
    """The kind and the value of an identity, as text."""
    if isinstance(identity, bytes):
        return "public address", str(ip_address(identity))
    kind, value = identity if isinstance(identity, tuple) else (_MAC, identity)
    return "MAC" if kind == _MAC else "public key", b64encode(value).decode() if isinstance(value, bytes) else str(
        value
    )


def losses(
    network: NetworkConfig, claims: Iterable[Claim], *, shares_addresses: bool = False
) -> Mapping[tuple[str, int], Loss]:
    """The lost claims among these, by the name of the lease and the IP version."""
    kept, leases = ConflictIndex(network, shares_addresses=shares_addresses), dict[str, Lease]()
    found: dict[tuple[str, int], Loss] = {}
    for claim in sorted(claims, key=lambda claim: rank_of(claim[0])):
        lease, subnet = claim
        kind, name = next(kept.conflicts(claim), ("", ""))
        if kind:
            winner = leases[name]
            found[lease.name, subnet.cidr.version] = Loss(kind, _words(kind, claim, winner), lease, winner)
        else:
            kept.add(claim)
            leases[lease.name] = lease
    return found


class ConflictIndex:
    """An index of claims by subnet and identity. Each operation takes a few microseconds among 10,000 claims."""

    def __init__(
        self, network: NetworkConfig, claims: Iterable[Claim] = (), *, shares_addresses: bool = False
    ) -> None:
        claims = list(claims)
        self._bounds = {
            n.family.version: (int(n.cidr.network_address), int(n.cidr.broadcast_address)) for n in network.families
        }
        self._shares_addresses = shares_addresses
        self._subnets = OverlapIndex((subnet.cidr, lease.name) for lease, subnet in claims)
        # Empty unless the network contains the underlay, which is rare.
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
        for identity in self._identities(subnet):
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

    def _same_identity(self, claim: Claim) -> Iterator[tuple[str, str]]:
        """Leases with an identity of this claim that conflict with it."""
        for identity in self._identities(claim[1]):
            for other in self._held(identity):
                if _is_rival(claim, other):
                    yield _kind(identity), other.name

    def _hold(self, claim: Claim) -> bool:
        """Adds the identities of a claim. Whether it conflicts with another lease that has one of them."""
        lease, subnet = claim
        is_shared = False
        for identity in self._identities(subnet):
            held = self._held(identity)
            if held:
                is_shared |= any(_is_rival(claim, other) for other in held)
            self._holders[identity] = (*held, lease) if held else lease
        return is_shared

    def _held(self, identity: Identity) -> tuple[Lease, ...]:
        held = self._holders.get(identity, ())
        return held if isinstance(held, tuple) else (held,)

    def _identities(self, subnet: Subnet) -> list[Identity]:
        version = subnet.cidr.version
        return identities(version, subnet.public_address, subnet.data, shares_addresses=self._shares_addresses)

    def _inner(self, subnet: Subnet) -> Iterator[Network]:
        """The public address, if it lies in the network."""
        address = subnet.public_address
        if address is not None:
            first, last = self._bounds.get(address.version, (0, -1))
            if first <= int(address) <= last:
                yield ip_network(address)


def _is_rival(claim: Claim, other: Lease) -> bool:
    """Whether a lease that has an identity of the claim conflicts with it.

    Two leases of one node with the same end point do not.
    """
    lease, subnet = claim
    return other.name != lease.name and not (
        lease.node == other.node
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
    if winner.node and not lease.node:
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

KINDS: Final = frozenset({"overlap", "peer-address", "inner-address", "shared-address", _MAC, _KEY})
"""The kinds of conflicts."""
