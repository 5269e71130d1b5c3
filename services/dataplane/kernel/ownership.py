"""Which of the kernel's objects are ours: pure, from a dump. Everything else stays, whatever happens."""

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeAlias

from services.core.family import FAMILIES, Address, Network, family_of
from services.dataplane.kernel.flannel_shape import DEFAULT_METRIC
from services.dataplane.netlink.objects import KernelObject, Route
from services.dataplane.netlink.uapi import RTN_UNICAST, RTPROT_BOOT
from services.dataplane.peers.context import PeerContext
from services.dataplane.peers.peer import Peer


class Destination(Protocol):
    """A route, or what is told of one."""

    @property
    def family(self) -> int: ...  # noqa: D102 - see Route, also below
    @property
    def dst(self) -> bytes: ...  # noqa: D102
    @property
    def length(self) -> int: ...  # noqa: D102


Membership: TypeAlias = Callable[[Destination], bool]


@dataclass(frozen=True, slots=True)
class OwnedState:
    """A dump, divided."""

    ours: frozenset[KernelObject]
    """May be replaced and deleted."""
    foreign: tuple[Route, ...]
    """Routes inside the network that are not ours: never touched, shown to an operator."""
    defaults: tuple[Route, ...] = ()
    """Routes to everywhere, which tell the underlay."""


@dataclass(frozen=True, slots=True)
class OwnershipRules:
    """What makes an object ours."""

    networks: Sequence[Network]
    own_subnets: Sequence[Network]
    devices: Set[int]
    """ifindex of our own devices; everything that they carry is ours."""
    protocol: int
    direct: Callable[[], Set[Hashable]] = field(default=frozenset, compare=False)
    """`directly` of every peer: what a flanneld routes without our device. Asked only if something looks like it."""

    def peers_part(self) -> Membership:
        """Whether a route leads into the network, and not to our own pods."""
        is_inside, is_own = _membership(self.networks), _membership(self.own_subnets)
        return lambda route: is_inside(route) and not is_own(route)


def next_hop_of(route: Route) -> Hashable:
    """Where to, through whom, and out of which device: all that a route to a peer's own address says."""
    return (route.destination, route.gateway, route.ifindex)


def rules_of(context: PeerContext, peers: Iterable[Peer] = ()) -> OwnershipRules:
    """The rules in a context; `peers` are those whose direct routes a flanneld may have made."""
    networks = tuple(cidr for family in FAMILIES for cidr in context.network.cidrs(family))
    links = context.links
    devices = {device.index for device in links.devices.values()}
    direct = partial(_direct_routes, peers, links.underlay.index)
    return OwnershipRules(networks, context.own_subnets, devices, links.route_protocol, direct)


def _direct_routes(peers: Iterable[Peer], underlay: int) -> frozenset[Hashable]:
    """What the routes say that lead to the peers' subnets through their own addresses; see `directly`."""
    rows = (candidate for peer in peers if peer.objects for candidate in peer.candidates)
    return frozenset(next_hop_of(_direct_route(s.cidr, s.public_address, underlay)) for s in rows if s.public_address)


def _direct_route(cidr: Network, gateway: Address, underlay: int) -> Route:
    return Route(cidr.network_address.packed, gateway.packed, 0, family_of(cidr).af, cidr.prefixlen, underlay, 0)


def classify(
    routes: Iterable[Route], on_devices: Iterable[KernelObject], desired: Set[KernelObject], domain: OwnershipRules
) -> OwnedState:
    """Divides a dump: `routes` of the main table, and what `on_devices` (neighbours, FDB) our own devices have.

    Ours are: routes of our protocol; on a device of ours, everything there and `proto boot` routes inside the
    network (a flanneld's); elsewhere a `proto boot` route of the default metric to a peer's subnet through that
    peer's own address (a flanneld's, of host-gw or with DirectRouting): adopted, so it goes once ours is there.
    """
    is_inside, is_peers = _membership(domain.networks), domain.peers_part()
    routes = frozenset(routes)
    elsewhere = [
        route
        for route in routes
        if route.protocol != domain.protocol
        and not (route.ifindex in domain.devices and _is_plain(route) and is_inside(route))
    ]
    ours = frozenset(on_devices) | routes.difference(elsewhere)  # whole sets: 30,000 hashes are known already
    foreign: list[Route] = []
    twins: list[Route] = []
    for route in elsewhere:
        if _is_plain(route) and route.metric == DEFAULT_METRIC[route.family]:
            twins.append(route)
        elif is_peers(route):
            foreign.append(route)
    if twins:
        said = {next_hop_of(o) for o in desired if isinstance(o, Route)} | domain.direct()
        adopted = {route for route in twins if next_hop_of(route) in said}
        ours |= adopted
        foreign += (r for r in twins if r not in adopted and is_peers(r))
    return OwnedState(ours, tuple(foreign), tuple(route for route in elsewhere if route.length == 0))


def wins(foreign: Route, ours: Route) -> bool:
    """Whether the kernel takes the foreign route, or ours would replace it: then ours counts as shadowed."""
    return foreign.metric <= ours.metric


def _is_plain(route: Route) -> bool:
    """Made as flanneld makes its routes: `proto boot`, unicast, nothing special about it."""
    return (route.protocol, route.route_type, route.tos, route.rest) == (RTPROT_BOOT, RTN_UNICAST, 0, b"")


def _membership(networks: Iterable[Network]) -> Membership:
    """Whether a route leads into one of the networks; on packed addresses, as a dump has many."""
    rows = [
        (family_of(n).af, n.prefixlen, int(n.network_address) >> (n.max_prefixlen - n.prefixlen), n.max_prefixlen)
        for n in networks
    ]

    def is_member(route: Destination) -> bool:
        return any(
            route.family == af and route.length >= length and int.from_bytes(route.dst) >> (bits - length) == prefix
            for af, length, prefix, bits in rows
        )

    return is_member
