"""Ownership: which of the kernel's objects are ours, and which shape a flanneld gives them. Pure, from a dump.

Everything else stays, whatever happens.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from flannelette.services.core.family import FAMILIES, Network, family_of
from flannelette.services.dataplane.netlink.ipsec.values import IkeConnection, IkeKey, XfrmPolicy
from flannelette.services.dataplane.netlink.objects import RTN_UNICAST, RTPROT_BOOT, KernelObject, Route
from flannelette.services.dataplane.netlink.uapi import AF_INET, AF_INET6, RTA_METRICS, attribute, attributes


class Destination(Protocol):
    """A route, or what is told of one."""

    @property
    def family(self) -> int: ...  # noqa: D102 - see Route, also below
    @property
    def dst(self) -> bytes: ...  # noqa: D102
    @property
    def length(self) -> int: ...  # noqa: D102


DEFAULT_METRIC: Final = {family.af: family.default_metric for family in FAMILIES}
"""By AF number: what flanneld's routes have, as they name none."""

Membership: TypeAlias = Callable[[Destination], bool]


@dataclass(frozen=True, slots=True)
class OwnedState:
    """A dump of the kernel, divided by owner."""

    ours: Set[KernelObject]
    """May be replaced and deleted."""
    foreign: tuple[Route, ...]
    """Routes inside the network that are not ours: never touched, shown to an operator."""
    defaults: tuple[Route, ...] = ()
    """Routes to everywhere, which tell the underlay."""
    own_parts: tuple[Route, ...] = ()
    """Routes inside the own subnets that are not ours: to the pods of this node, or in their way."""


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

    def network_part(self) -> Membership:
        """Whether a route leads into the network."""
        return _membership(self.networks)

    def peers_part(self) -> Membership:
        """Whether a route leads into the network, and not to our own pods."""
        is_inside, is_own = _membership(self.networks), _membership(self.own_subnets)
        return lambda route: is_inside(route) and not is_own(route)


def next_hop_of(route: Route) -> Hashable:
    """Where to, through whom, and out of which device: all that a route to a peer's own address says."""
    return (route.destination, route.gateway, route.ifindex)


def classify(
    routes: Iterable[Route], on_devices: Iterable[KernelObject], desired: Set[KernelObject], domain: OwnershipRules
) -> OwnedState:
    """Divides a dump: `routes` of the main table, and `on_devices` what our own devices have, or no device has.

    Ours are: routes of our protocol; on a device of ours, everything there and `proto boot` routes inside the
    network (a flanneld's); elsewhere a `proto boot` route of the default metric to a peer's subnet through that
    peer's own address (a flanneld's, of host-gw or with DirectRouting): adopted, so it goes once ours is there.
    Of xfrm policies those with our mark, and those of flanneld's shape inside the network.
    """
    is_inside, is_own, is_peers = (
        _membership(domain.networks),
        _membership(domain.own_subnets),
        domain.peers_part(),
    )
    routes = frozenset(routes)
    elsewhere = [
        route
        for route in routes
        if route.protocol != domain.protocol
        and not (route.ifindex in domain.devices and _is_plain(route) and is_inside(route))
    ]
    ours: set[KernelObject] = {*on_devices, *routes}  # one copy: 30,000 objects whose hashes are known already
    ours.difference_update(elsewhere)
    if XfrmPolicy in set(map(type, ours)):
        ours -= {item for item in ours if isinstance(item, XfrmPolicy) and not _is_ours(item, is_inside)}
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
    defaults = tuple(route for route in elsewhere if route.length == 0)
    return OwnedState(ours, tuple(foreign), defaults, tuple(route for route in elsewhere if is_own(route)))


def tuned_routes(routes: Iterable[Route], desired: Set[KernelObject], protocol: int) -> dict[Route, Route]:
    """The routes that an operator has changed without diverting a packet (`mtu 1350`, `advmss`), and the wanted ones.

    They lead where ours do, so they stay. `ip route change` without `proto` makes them another program's.
    """
    found = {}
    for route in routes:
        if route.rest:
            bare = route._replace(rest=without_metrics(route.rest))
            wanted = next((r for r in (bare, bare._replace(protocol=protocol)) if r in desired), None)
            if wanted is not None:
                found[route] = wanted
    return found


def wins(foreign: Route, ours: Route) -> bool:
    """Whether the kernel takes the foreign route, or ours would replace it: then ours counts as shadowed."""
    return foreign.metric <= ours.metric


def flannel_shape(objects: Iterable[KernelObject]) -> frozenset[KernelObject]:
    """The same objects with routes of flanneld's protocol and metric; neighbours and FDB entries are alike anyway.

    Without a blackhole of the own subnet: of the default metric it would replace the route to the pods' bridge. Of
    ipsec the policies with a tunnel alone: flanneld has no routes there, and a charon of its own.
    """
    return frozenset(shape for item in objects if (shape := _as_flannels(item)) is not None)


def _as_flannels(item: KernelObject) -> KernelObject | None:
    match item:
        case Route():
            is_flannels = item.route_type == RTN_UNICAST and not item.rest
            return item._replace(protocol=RTPROT_BOOT, metric=DEFAULT_METRIC[item.family]) if is_flannels else None
        case XfrmPolicy():
            return item._replace(priority=0, is_optional=False) if item.tunnel_src else None
        case IkeKey() | IkeConnection():
            return None
    return item


class _Prefix(NamedTuple):
    family: int
    dst: bytes
    length: int


def _is_ours(policy: XfrmPolicy, is_inside: Membership) -> bool:
    af = AF_INET if len(policy.src) == 4 else AF_INET6
    ends = ((policy.src, policy.src_length), (policy.dst, policy.dst_length))
    return policy.is_marked or all(is_inside(_Prefix(af, *end)) for end in ends)


def _is_plain(route: Route) -> bool:
    """Whether the route is as flanneld makes its routes: `proto boot`, unicast, nothing special but metrics."""
    is_bare = not route.rest or not without_metrics(route.rest)
    return is_bare and (route.protocol, route.route_type, route.tos) == (RTPROT_BOOT, RTN_UNICAST, 0)


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


def without_metrics(rest: bytes) -> bytes:
    """`Route.rest` without the metrics of the route."""
    return b"".join(attribute(kind, value) for kind, value in attributes(rest) if kind != RTA_METRICS)
