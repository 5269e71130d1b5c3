"""Which subnets are somebody's, though the store has them free: those of leases that the guard keeps. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from services.core.lease import Lease, LeaseRequest


def shunning(request: LeaseRequest, leases: Mapping[str, Lease], held: Iterable[str]) -> LeaseRequest:
    """The request, but for subnets of other nodes' leases that are held: they use them, whatever the store says.

    And with those of the node's own.
    """
    addresses = {wish.public_address for wish in request.wishes}
    kept = [leases[name] for name in held if name in leases]
    others = (lease for lease in kept if lease.node != request.node and addresses.isdisjoint(lease.addresses))
    own = next((lease.cidrs for lease in kept if lease.node == request.node), ())
    return replace(request, shunned=tuple(cidr for lease in others for cidr in lease.cidrs), lost=own)
