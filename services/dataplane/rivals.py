"""Leases that cannot all be carried: subnets that overlap, and a subnet that holds another node's public address.

It is decided anew from all leases, so that every node comes to the same result in whatever order they came.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_network
from typing import TypeAlias

from services.core.family import Network, family_of
from services.core.lease import Subnet
from services.core.network import NetworkConfig
from services.core.overlaps import Overlaps
from services.dataplane.admission import Refusal
from services.dataplane.bounds import span

Candidate: TypeAlias = tuple[str, Subnet]
"""A lease's name, and a subnet of it that could be carried if it were alone."""

Losers: TypeAlias = Mapping[tuple[str, int], Refusal]
"""By lease and IP version."""


class Rivalry:
    """Knows which candidates clash; `losers` says what it comes to."""

    def __init__(self, network: NetworkConfig, candidates: Iterable[Candidate]) -> None:
        candidates = list(candidates)
        self._spans = {n.family.version: span(n.cidr) for n in network.families}
        self._subnets = Overlaps((subnet.cidr, lease) for lease, subnet in candidates)
        # Where the network does not hold the underlay, which is the rule, there is none of these.
        self._addresses = Overlaps(self._inner(candidates))

    def any(self) -> bool:
        """Whether any two may clash."""
        return len(self._addresses) > 0 or self._subnets.any()

    def add(self, candidate: Candidate) -> bool:
        """Whether it clashes with another, so that `losers` may have changed."""
        clash = self._clashes(candidate)
        self._subnets.add(candidate[1].cidr, candidate[0])
        for row in self._inner([candidate]):
            self._addresses.add(*row)
        return clash

    def remove(self, candidate: Candidate) -> bool:
        """Whether it clashed with another, so that `losers` may have changed."""
        self._subnets.remove(candidate[1].cidr, candidate[0])
        for row in self._inner([candidate]):
            self._addresses.remove(*row)
        return self._clashes(candidate)

    def covered(self, candidate: Candidate) -> str | None:
        """Another lease, if a public address of it lies in this subnet."""
        owners = self._addresses.owners(candidate[1].cidr) if len(self._addresses) else iter(())
        return next((owner for owner in owners if owner != candidate[0]), None)

    def _clashes(self, candidate: Candidate) -> bool:
        """Call it while the candidate is not in the index."""
        if next(self._subnets.owners(candidate[1].cidr), None) is not None or self.covered(candidate) is not None:
            return True
        return any(True for cidr, _ in self._inner([candidate]) for _ in self._subnets.owners(cidr))

    def _inner(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Network, str]]:
        """The public addresses that lie in the network."""
        for lease, subnet in candidates:
            address = subnet.public_address
            if address is not None:
                network = self._spans[address.version]
                if network.first <= int(address) <= network.last:
                    yield ip_network(address), lease


def losers(network: NetworkConfig, rivalry: Rivalry, candidates: Iterable[Candidate]) -> Losers:
    """Who of the candidates has to stand back, and why.

    * A subnet that holds a public address of another lease: routed into the overlay, that node is lost.
    * Of subnets that overlap the one goes first that agrees with the network's SubnetLen, then the narrower one, then
      the one of the lease whose name sorts first. So a wide subnet displaces nobody.
    """

    def rank(candidate: Candidate) -> tuple[bool, int, str]:
        cidr = candidate[1].cidr
        enabled = network.family(family_of(cidr))
        return (enabled is None or not enabled.fits(cidr), -cidr.prefixlen, candidate[0])

    found: dict[tuple[str, int], Refusal] = {}
    taken, held = Overlaps(), dict[tuple[str, int], Network]()
    for lease, subnet in sorted(candidates, key=rank) if rivalry.any() else ():
        key, cidr = (lease, subnet.cidr.version), subnet.cidr
        covered = rivalry.covered((lease, subnet))
        if covered is not None:
            reason = f"its subnet {cidr} covers the public address of the lease {covered}"
            found[key] = Refusal("peer-address", reason)
        elif (first := next(taken.owners(cidr), None)) is not None:
            other = held[first, cidr.version]
            reason = f"its subnet {cidr} overlaps {other} of the lease {first}, which goes first"
            found[key] = Refusal("overlap", reason)
        else:
            taken.add(cidr, lease)
            held[key] = cidr
    return found
