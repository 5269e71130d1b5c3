"""Which lease a node gets. Pure; chance and signs of life are arguments."""

from collections.abc import Callable
from dataclasses import dataclass

from services.core.errors import InvalidInput, NotYet
from services.core.family import Address, Network
from services.core.lease import Lease, LeaseRequest, Subnet, Wish, lease_key
from services.core.network import NetworkConfig
from services.core.subnets import Draw, choose_subnets, fits
from services.lease.stores.etcd.table import Entry, Table

IsAlive = Callable[[str], bool]
"""Whether a node's dataplane is there; without sessions the answer is always yes."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the node shall hold."""

    lease: Lease
    """Complete but for its time."""
    current: Entry | None
    """What is under its name now; None: it is new."""
    given_up: tuple[Entry, ...]
    """What the node loses for it: leases that do not fit the network, or one too many."""


def decide(table: Table, network: NetworkConfig, request: LeaseRequest, draw: Draw, is_alive: IsAlive) -> Decision:
    """In this order: the subnet it holds; a lease with its address that nobody holds; its previous one; a free one.

    Raises NotYet when another node that is alive holds one of its public addresses, Exhausted when no subnet is
    free, InvalidInput when the request lacks an address that the network needs.
    """
    wishes = _wishes(network, request)
    _refuse_held_addresses(table, wishes, request.node, is_alive)
    own = [entry for entry in table.entries.values() if entry.node == request.node]
    unheld = [
        entry
        for entry in table.entries.values()
        if entry.node != request.node and _has_address(entry, wishes[0].public_address)
    ]
    for candidates in (own, unheld):
        current = next((entry for entry in candidates if entry.lease and fits(network, entry.lease)), None)
        if current is not None:
            given_up = tuple(entry for entry in own if entry is not current)
            return Decision(_lease(request, current.cidrs, wishes, current.reserved), current, given_up)
    given_up = (*own, *(entry for entry in unheld if not entry.reserved))
    names = {entry.name for entry in given_up if not entry.reserved}
    taken = [cidr for entry in table.entries.values() if entry.name not in names for cidr in entry.cidrs]
    return Decision(_lease(request, choose_subnets(network, request, taken, draw), wishes), None, given_up)


def _wishes(network: NetworkConfig, request: LeaseRequest) -> tuple[Wish, ...]:
    wishes = tuple(wish for n in network.families if (wish := request.wish(n.family)))
    if len(wishes) < len(network.families):
        missing = next(n.family for n in network.families if request.wish(n.family) is None)
        raise InvalidInput(
            f"the network has {missing}, and node {request.node} names no public {missing} address: publish one"
        )
    return wishes


def _refuse_held_addresses(table: Table, wishes: tuple[Wish, ...], node: str, is_alive: IsAlive) -> None:
    for wish in wishes:
        for entry in table.entries.values():
            if entry.node not in ("", node) and _has_address(entry, wish.public_address) and is_alive(entry.node):
                raise NotYet(
                    f"node {node} cannot have the public address {wish.public_address}: node {entry.node} holds it "
                    f"with lease {entry.name}; give one of them another address (--public-ip), or release the lease "
                    f"of {entry.node} if that node is gone"
                )


def _has_address(entry: Entry, address: Address) -> bool:
    return entry.lease is not None and any(subnet.public_address == address for subnet in entry.lease.subnets)


def _lease(
    request: LeaseRequest, cidrs: tuple[Network, ...], wishes: tuple[Wish, ...], reserved: bool = False
) -> Lease:
    subnets = (Subnet(c, wish.public_address, wish.data) for c, wish in zip(cidrs, wishes, strict=True))
    return Lease(lease_key(cidrs), request.node, tuple(subnets), request.backend_type, reserved=reserved)
