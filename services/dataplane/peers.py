"""From a lease to the kernel objects that carry it: pure, one peer at a time."""

from collections.abc import Hashable, Iterable, Mapping
from typing import Final, TypeAlias

from services.core.conflicts import Loss
from services.core.family import Address, Network, family_of
from services.core.lease import Lease, Subnet
from services.core.record import record
from services.dataplane.admission import Refusal, refusal
from services.dataplane.backends.backend import Unsuitable
from services.dataplane.netlink.objects import KernelObject, Route
from services.dataplane.ownership import directly
from services.dataplane.situation import Situation

Losses: TypeAlias = Mapping[tuple[str, int], Loss]
"""See services.core.conflicts."""

_NONE: Final[Losses] = {}


@record
class Peer:
    """A lease of another node, and what it needs in the kernel."""

    lease: Lease
    objects: tuple[KernelObject, ...]
    refusals: tuple[Refusal, ...] = ()
    """What of it is not carried."""
    candidates: tuple[Subnet, ...] = ()
    """The subnets that are, or would be if it were alone."""

    @property
    def reason(self) -> str:
        """Why it, or a part of it, is not carried; empty: it is."""
        return "; ".join(dict.fromkeys(each.reason for each in self.refusals))

    @property
    def ignored(self) -> str:
        """Why it gets nothing; empty if it gets something."""
        return "" if self.objects else self.reason


def peer_of(lease: Lease, situation: Situation, losses: Losses = _NONE) -> Peer:
    """The peer. A lease is data from the network: what does not fit is refused with a reason, never programmed."""
    objects: tuple[KernelObject, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    candidates: tuple[Subnet, ...] = ()
    subnets: tuple[Subnet, ...] = lease.subnets
    general = _general(lease, situation)
    if general is not None:
        refusals, subnets = (general,), ()
    for subnet in subnets:
        found = refusal(subnet, situation)
        if found is None:
            try:
                needed = situation.backend.objects(family_of(subnet.cidr), subnet, situation.links)
            except Unsuitable as error:
                found = Refusal("backend-data", str(error))
        if found is None:
            candidates += (subnet,)
            loss = losses.get((lease.name, subnet.cidr.version)) if losses else None
            found = Refusal(loss.kind, loss.reason) if loss else None
        if found is None:
            objects += tuple(needed)
        else:
            refusals += (found,)
    if candidates == lease.subnets:
        candidates = lease.subnets  # once in memory, as nearly always
    return Peer(lease, objects, refusals, candidates)


def _general(lease: Lease, situation: Situation) -> Refusal | None:
    """What speaks against the lease as a whole."""
    if lease.backend_type != situation.backend.lease_type:
        theirs = lease.backend_type or "none"
        return Refusal("backend", f"its backend is {theirs}, this network's is {situation.backend.lease_type}")
    if not lease.subnets:
        return Refusal("no-subnet", "it has no subnet")
    if len(lease.subnets) > 1 and len({subnet.cidr.version for subnet in lease.subnets}) < len(lease.subnets):
        return Refusal("two-subnets", "it has two subnets of one address family")
    return None


def direct_routes(peers: Iterable[Peer], underlay: int) -> frozenset[Hashable]:
    """What the routes say that lead to the peers' subnets through their own addresses; see ownership.directly."""
    rows = (candidate for peer in peers if peer.objects for candidate in peer.candidates)
    return frozenset(directly(_direct_route(s.cidr, s.public_address, underlay)) for s in rows if s.public_address)


def _direct_route(cidr: Network, gateway: Address, underlay: int) -> Route:
    return Route(cidr.network_address.packed, gateway.packed, 0, family_of(cidr).af, cidr.prefixlen, underlay, 0)
