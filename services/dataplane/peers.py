"""From a lease to the kernel objects that carry it: pure, one peer at a time."""

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import partial

from services.core.family import Address, Network, family_of
from services.core.lease import Lease
from services.core.network import NetworkConfig, contains
from services.dataplane.backends.backend import Backend, Links, Unsuitable
from services.dataplane.netlink.objects import KernelObject, Route
from services.dataplane.ownership import Domain, directly
from services.dataplane.reconciler import Scope


@dataclass(frozen=True, slots=True)
class Peer:
    """A lease of another node, and what it needs in the kernel."""

    lease: Lease
    objects: frozenset[KernelObject]
    ignored: str = ""
    """Why it gets nothing; empty if it gets something."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a peer's objects depend on beside its lease."""

    network: NetworkConfig
    backend: Backend
    links: Links
    own_subnets: tuple[Network, ...] = ()

    def differs_by_devices_only(self, earlier: "Situation") -> bool:
        """Whether nothing was decided anew since: what is missing in the kernel, somebody else took away."""
        return (self.network, self.backend, self.links.underlay, self.own_subnets) == (
            earlier.network,
            earlier.backend,
            earlier.links.underlay,
            earlier.own_subnets,
        )

    def scope(self, peers: Iterable["Peer"] = ()) -> Scope:
        """Where the objects of these peers are."""
        families = tuple(n.family for n in self.network.families)
        devices = {device.index for device in self.links.devices.values()}
        networks = tuple(n.cidr for n in self.network.families)
        direct = partial(direct_routes, peers, self.links.underlay.index)
        domain = Domain(networks, self.own_subnets, devices, self.links.route_protocol, direct)
        return Scope(families, domain)


def direct_routes(peers: Iterable[Peer], underlay: int) -> frozenset[Hashable]:
    """What the routes say that lead to the peers' subnets through their own addresses; see ownership.directly."""
    rows = (subnet for peer in peers if peer.objects for subnet in peer.lease.subnets)
    return frozenset(directly(_direct_route(s.cidr, s.public_address, underlay)) for s in rows if s.public_address)


def _direct_route(cidr: Network, gateway: Address, underlay: int) -> Route:
    return Route(cidr.network_address.packed, gateway.packed, 0, family_of(cidr).af, cidr.prefixlen, underlay, 0)


def peer_of(lease: Lease, situation: Situation) -> Peer:
    """The peer. A lease is data from the network: what does not fit is ignored with a reason, never programmed."""
    objects: set[KernelObject] = set()
    reasons = []
    if lease.backend_type != situation.backend.lease_type:
        theirs = lease.backend_type or "none"
        return Peer(lease, frozenset(), f"its backend is {theirs}, this network's is {situation.backend.lease_type}")
    for subnet in lease.subnets:
        try:
            _require_fit(subnet.cidr, situation)
            underlay = situation.links.underlay
            if subnet.public_address in (*underlay.addresses, *underlay.public_addresses):
                raise Unsuitable(f"its public address {subnet.public_address} is our own")
            objects |= situation.backend.objects(family_of(subnet.cidr), subnet, situation.links)
        except Unsuitable as error:
            reasons.append(str(error))
    return Peer(lease, frozenset(objects), "" if objects else "; ".join(reasons))


def _require_fit(cidr: Network, situation: Situation) -> None:
    network = situation.network.family(family_of(cidr))
    if network is None:
        raise Unsuitable(f"the network has no {family_of(cidr)}")
    if not contains(network.cidr, cidr) or cidr == network.cidr:
        raise Unsuitable(f"its subnet {cidr} lies outside the network {network.cidr}")
    for own in situation.own_subnets:
        if contains(own, cidr) or contains(cidr, own):
            raise Unsuitable(f"its subnet {cidr} overlaps our own {own}")
