"""From a lease to the kernel objects that carry it: pure, one peer at a time."""

from collections.abc import Mapping
from typing import Final, TypeAlias

from services.core.leases.conflicts import Loss
from services.core.leases.lease import Lease, Subnet
from services.core.light_dataclass import light_dataclass
from services.dataplane.netlink.objects import KernelObject
from services.dataplane.peers.context import PeerContext
from services.dataplane.peers.validation import Rejection, reject

Losses: TypeAlias = Mapping[tuple[str, int], Loss]
"""See services.core.leases.conflicts."""

_NONE: Final[Losses] = {}


@light_dataclass
class Peer:
    """A lease of another node, and what it needs in the kernel."""

    lease: Lease
    objects: tuple[KernelObject, ...]
    refusals: tuple[Rejection, ...] = ()
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


def peer_of(lease: Lease, context: PeerContext, losses: Losses = _NONE) -> Peer:
    """The peer. A lease is data from the network: what does not fit is refused with a reason, never programmed."""
    carried: tuple[Subnet, ...] = ()
    refusals: tuple[Rejection, ...] = ()
    candidates: tuple[Subnet, ...] = ()
    subnets: tuple[Subnet, ...] = lease.subnets
    backend, general = context.backend, _general(lease, context)
    if general is not None:
        refusals, subnets = (general,), ()
    for subnet in subnets:
        found = reject(subnet, context)
        if found is None and (reason := backend.rejection(subnet, context.links)):
            found = Rejection("backend-data", reason)
        if found is None:
            candidates += (subnet,)
            loss = losses.get((lease.name, subnet.cidr.version)) if losses else None
            found = Rejection(loss.kind, loss.reason) if loss else None
        if found is None:
            carried += (subnet,)
        else:
            refusals += (found,)
    if candidates == lease.subnets:
        candidates = lease.subnets  # once in memory, as nearly always
    objects = backend.peer_objects(carried, context.own_subnets, context.links) if carried else ()
    return Peer(lease, tuple(objects), refusals, candidates)


def _general(lease: Lease, context: PeerContext) -> Rejection | None:
    """What speaks against the lease as a whole."""
    if lease.backend_type != context.backend.lease_type:
        theirs, ours = (kind or "none" for kind in (lease.backend_type, context.backend.lease_type))
        return Rejection("backend", f"its backend is {theirs}, this network's is {ours}")
    if not lease.subnets:
        return Rejection("no-subnet", "it has no subnet")
    if len(lease.subnets) > 1 and len({subnet.cidr.version for subnet in lease.subnets}) < len(lease.subnets):
        return Rejection("two-subnets", "it has two subnets of one address family")
    return None
