"""Which lease a node gets: the order of choice of AcquireLease, pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from services.core.errors import InvalidInput, NotYet
from services.core.lease import Lease, LeaseRequest, Subnet, lease_key
from services.core.network import NetworkConfig
from services.core.subnets import Draw, choose_subnets, fits


@dataclass(frozen=True, slots=True)
class Acquisition:
    """What to do: give leases up, then put one."""

    lease: Lease
    """Without a time if it is a reservation, else until when the caller of `decide` says."""
    given_up: tuple[Lease, ...] = ()
    """Leases of this node that no longer fit the network."""


def decide(
    network: NetworkConfig, leases: Mapping[str, Lease], request: LeaseRequest, expires_at: float, draw: Draw
) -> Acquisition:
    """The lease for the node.

    The subnet it holds; a lease with its public address that nobody holds; its previous subnet; a free one. None of
    `leases` may have run out. Raises InvalidInput, NotYet (another node holds the address), Exhausted.
    """
    _require_wishes(network, request)
    _require_free_addresses(leases.values(), request)
    own = [lease for lease in leases.values() if lease.node == request.node]
    adoptable = [lease for lease in leases.values() if not lease.node and _shared_address(lease, request)]
    given_up = tuple(lease for lease in own if not fits(network, lease))
    kept = next((lease for lease in (*own, *adoptable) if fits(network, lease)), None)
    if kept is not None:
        cidrs = tuple(subnet.cidr for subnet in kept.subnets)
    else:
        gone = {lease.name for lease in given_up if not lease.reserved}
        taken = [subnet.cidr for lease in leases.values() if lease.name not in gone for subnet in lease.subnets]
        cidrs = choose_subnets(network, request, taken, draw)
    reserved = kept is not None and kept.reserved
    subnets = tuple(
        Subnet(cidr, wish.public_address, wish.data)
        for n, cidr in zip(network.families, cidrs, strict=True)
        if (wish := request.wish(n.family)) is not None
    )
    lease = Lease(
        lease_key(cidrs), request.node, subnets, request.backend_type, None if reserved else expires_at, reserved
    )
    return Acquisition(lease, given_up)


def without_holder(lease: Lease) -> Lease:
    """A reservation that nobody holds: no address, so no peer sends there."""
    return Lease(lease.name, "", tuple(Subnet(subnet.cidr) for subnet in lease.subnets), reserved=True)


def _require_wishes(network: NetworkConfig, request: LeaseRequest) -> None:
    for n in network.families:
        if request.wish(n.family) is None:
            raise InvalidInput(
                f"the network {n.cidr} has {n.family}, and the request has no {n.family} public address: "
                "give the node one, or disable the family in the network configuration"
            )


def _require_free_addresses(leases: Iterable[Lease], request: LeaseRequest) -> None:
    for lease in leases:
        if lease.node and lease.node != request.node and (address := _shared_address(lease, request)):
            raise NotYet(
                f"the public address {address} of node {request.node} is held by node {lease.node} (lease "
                f"{lease.name}): give one of the two another address (--public-ip, --iface); if {lease.node} is "
                f"gone, release its lease (ReleaseLease, node {lease.node}, name {lease.name}) or wait until it "
                "runs out"
            )


def _shared_address(lease: Lease, request: LeaseRequest) -> str:
    """An address that both the lease and the request publish; empty if there is none."""
    wanted = {wish.public_address for wish in request.wishes}
    return next((str(s.public_address) for s in lease.subnets if s.public_address in wanted), "")
