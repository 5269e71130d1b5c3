"""Reconciles kernel objects: reads what is there, plans `desired - actual`, and carries the plan out.

One way for everything and for a part: everything is compared with a dump of the kernel, the objects of a few peers
with what the last dump and our own changes say. Teardown is the same with nothing desired. A dump is divided into
objects that are ours and those that are not, which stay, whatever happens; a flanneld gives ours another shape.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NamedTuple, Protocol, TypeAlias

from flannelette.services.core.family import FAMILIES, Address, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.netlink.actuator import Actuator, Contents
from flannelette.services.dataplane.netlink.object_text import metrics_text, mtu_of, with_mtu
from flannelette.services.dataplane.netlink.objects import (
    HOOK,
    ROUTE,
    RTN_UNICAST,
    RTPROT_BOOT,
    Hook,
    IkeConnection,
    IkeKey,
    KernelObject,
    Plan,
    Route,
    XfrmPolicy,
    plan,
)
from flannelette.services.dataplane.netlink.uapi import AF_INET, AF_INET6
from flannelette.services.dataplane.peers import Peer, PeerContext


class Destination(Protocol):
    """A route, or what is told of one."""

    @property
    def family(self) -> int: ...  # noqa: D102 - see Route, also below
    @property
    def dst(self) -> bytes: ...  # noqa: D102
    @property
    def length(self) -> int: ...  # noqa: D102


DEFAULT_METRIC: Final = {family.af: family.default_metric for family in FAMILIES}
"""Metric of flanneld's routes by AF number: the kernel's default, because they name none."""

Membership: TypeAlias = Callable[[Destination], bool]


@frozen
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


@frozen
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


def tuned_routes(
    routes: Iterable[Route],
    desired: Set[KernelObject],
    protocol: int,
    is_measured: Callable[[Route], bool] = lambda _: False,
) -> dict[Route, Route]:
    """The routes that an operator has changed without diverting a packet (`mtu 1350`, `advmss`), and the wanted ones.

    They lead where ours do, so they stay. `ip route change` without `proto` makes them another program's. An MTU that
    `is_measured` is ours, and no operator's.
    """
    tuned = [route for route in routes if route.rest and route not in desired and not is_measured(route)]
    if not tuned:
        return {}
    wanted = {with_mtu(item, 0): item for item in desired if isinstance(item, Route)}
    found = {}
    for route in tuned:
        bare = with_mtu(route, 0)
        ours = next((r for r in (bare, bare._replace(protocol=protocol)) if r in wanted), None)
        if ours is not None:
            found[route] = wanted[ours]
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
            bare = with_mtu(item, 0)
            is_flannels = bare.route_type == RTN_UNICAST and not bare.rest
            return bare._replace(protocol=RTPROT_BOOT, metric=DEFAULT_METRIC[item.family]) if is_flannels else None
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
    return not with_mtu(route, 0).rest and (route.protocol, route.route_type, route.tos) == (
        RTPROT_BOOT,
        RTN_UNICAST,
        0,
    )


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


KernelPlan: TypeAlias = Plan[KernelObject]


@frozen
class Scope:
    """The part of the kernel that a comparison reads, and the rules that say which objects are ours."""

    families: tuple[Family, ...]
    rules: OwnershipRules
    adds_only: bool = False
    """Objects are only added: nothing that exists is deleted or replaced."""


@frozen
class Comparison:
    """The plan that brings the kernel to the desired state, and the state it was made from."""

    todo: KernelPlan
    state: OwnedState
    missing: Set[KernelObject]
    """Desired and not in the kernel, also what cannot be put."""
    found: Contents
    mtus: Mapping[Hashable, int] = field(default_factory=dict)
    """See Reconciler."""


@dataclass(slots=True)
class Reconciler:
    """The objects of ours that are known to be in the kernel, and the only writer of them."""

    kernel: Actuator
    programmed: set[KernelObject] = field(default_factory=set)
    """Objects that are ours and present, by the last dump and our own changes."""
    failures: dict[KernelObject, str] = field(default_factory=dict)
    """Desired objects that the kernel refused, with its reason. Tried again at each full comparison."""
    faults: Mapping[Hashable, str] = field(default_factory=dict)
    """Why an object does not work although it is as desired, at the last dump, by slot."""
    foreign: tuple[Route, ...] = ()
    """Routes inside the network that are not ours."""
    foreign_devices: Set[int] = frozenset()
    """ifindex of the devices that foreign routes leave through."""
    defaults: tuple[Route, ...] = ()
    """Default routes, at the last dump."""
    mtus: Mapping[Hashable, int] = field(default_factory=dict)
    """MTUs of our routes to which an operator has given one, by key, at the last dump."""
    own_parts: tuple[Route, ...] = ()
    """Routes inside the own subnets that are not ours, at the last dump."""
    _foreign_keys: Set[Hashable] = frozenset()
    """Keys of foreign routes: an object of ours with such a key would replace them."""
    _best_foreign: dict[Hashable, Route] = field(default_factory=dict)
    """The foreign route with the lowest metric, by destination."""
    kept_mtus: Set[int] = frozenset()
    """MTUs that an earlier process has given to routes of ours, until the first comparison."""
    _deleted_keys: set[Hashable] = field(default_factory=set)

    async def compare(self, desired: Set[KernelObject], scope: Scope) -> Comparison:
        """What `reconcile` would do with everything, from a dump. Changes nothing."""
        found = await self.kernel.contents([f.af for f in scope.families], scope.rules.devices, desired)
        protocol = scope.rules.protocol

        def is_measured(route: Route) -> bool:
            return route in self.programmed or (route.protocol == protocol and mtu_of(route) in self.kept_mtus)

        tuned = tuned_routes(found.routes, desired, protocol, is_measured)
        if tuned:
            routes = (found.routes - tuned.keys()) | frozenset(tuned.values())
            told = {wanted.key: f"with {metrics_text(route)} of an operator" for route, wanted in tuned.items()}
            found = replace(found, routes=routes, states={**found.states, **told})
        mtus = {wanted.key: mtu for route, wanted in tuned.items() if (mtu := mtu_of(route))}
        state = classify(found.routes, found.on_devices, desired, scope.rules)
        foreign_keys = {route.key for route in state.foreign}
        todo = _plan(state.ours, desired, foreign_keys, adds_only=scope.adds_only)
        is_all_put = not foreign_keys and not scope.adds_only
        return Comparison(todo, state, todo.put if is_all_put else desired - state.ours, found, mtus)

    async def reconcile(
        self, desired: Set[KernelObject], scope: Scope, within: Set[KernelObject] | None = None
    ) -> KernelPlan:
        """Brings the kernel to the desired state; returns the plan, of which `failures` has what was refused.

        `within` restricts it to these objects and the desired ones: nothing is read, and what is known to be
        programmed counts. None: everything, from a dump.
        """
        if within is None:
            comparison = await self.compare(desired, scope)
            todo, ours = comparison.todo, comparison.state.ours
            self._note_foreign(comparison.state)
            self.faults, self.mtus = comparison.found.faults, comparison.mtus
            self.programmed = set(desired)  # the values of the dump, but those of `desired`: once in memory
            self.programmed -= comparison.missing
            strangers: Set[KernelObject] = ours - desired if len(ours) > len(self.programmed) else frozenset()
            self.programmed |= strangers
            self.failures.clear()
            self.kept_mtus = frozenset()
            self._deleted_keys.clear()
        else:
            known = within & self.programmed
            todo, strangers = _plan(known, desired, self._foreign_keys, adds_only=scope.adds_only), known - desired
            for item in within:
                self.failures.pop(item, None)
        await self._carry_out(todo)
        self.programmed -= strangers - self.failures.keys()
        return todo

    async def observe(self, desired: Set[KernelObject], scope: Scope) -> None:
        """Notes which foreign routes there are, and changes nothing."""
        self._note_foreign((await self.compare(desired, scope)).state)

    def take_deleted_keys(self) -> Set[Hashable]:
        """Keys of neighbours and FDB entries that we deleted and have not put again since the last call.

        The kernel does not say who deleted such an entry; of a route it does.
        """
        taken, self._deleted_keys = self._deleted_keys, set()
        return taken

    def forget(self) -> None:
        """Forgets all programmed objects, after an operator's teardown or hand-over."""
        self.programmed.clear()

    def shadow(self, route: Route) -> Route | None:
        """The foreign route that wins over this one, if any."""
        foreign = self._best_foreign.get(route.destination)
        return foreign if foreign is not None and wins(foreign, route) else None

    def _note_foreign(self, state: OwnedState) -> None:
        by_metric = sorted(state.foreign, key=lambda route: -route.metric)
        self.foreign, self.defaults, self.own_parts = state.foreign, state.defaults, state.own_parts
        self.foreign_devices = {route.ifindex for route in state.foreign if route.ifindex}
        self._foreign_keys = {route.key for route in state.foreign}
        self._best_foreign = {route.destination: route for route in by_metric}

    async def _carry_out(self, todo: KernelPlan) -> None:
        if not (todo or self.faults):
            return
        failed = await self.kernel.apply(todo)
        if self._deleted_keys:
            self._deleted_keys -= {item.key for item in todo.put}
        self._deleted_keys |= {item.key for item in todo.delete if item.kind != ROUTE and item not in failed}
        self.programmed |= todo.put - failed.keys()
        self.programmed -= todo.delete - failed.keys()
        self.failures.update(failed)


def scope_of(context: PeerContext, peers: Iterable[Peer]) -> Scope:
    """Returns the scope of a comparison; `peers` are those whose direct routes a flanneld may have made."""
    families = tuple(n.family for n in context.network.families)
    return Scope(families, rules_of(context, peers), context.adds_only)


def rules_of(context: PeerContext, peers: Iterable[Peer] = ()) -> OwnershipRules:
    """What makes an object ours in a context; see `scope_of`."""
    networks = tuple(cidr for family in FAMILIES for cidr in context.network.cidrs(family))
    links = context.links
    devices = {device.index for device in context.devices()}
    direct = partial(_direct_routes, peers, links.underlay.index)
    return OwnershipRules(networks, context.own_subnets, devices, links.route_protocol, direct)


def _direct_routes(peers: Iterable[Peer], underlay: int) -> frozenset[Hashable]:
    """What the routes say that lead to the peers' subnets through their own addresses; see `OwnershipRules`."""
    carried = (peer for peer in peers if peer.objects and peer.objects[0].kind != HOOK)  # a hook made its routes
    rows = (candidate for peer in carried for candidate in peer.candidates)
    return frozenset(next_hop_of(_direct_route(s.cidr, s.public_address, underlay)) for s in rows if s.public_address)


def _direct_route(cidr: Network, gateway: Address, underlay: int) -> Route:
    return Route(cidr.network_address.packed, gateway.packed, 0, family_of(cidr).af, cidr.prefixlen, underlay, 0)


def _plan(
    ours: Set[KernelObject], desired: Set[KernelObject], foreign_keys: Set[Hashable], *, adds_only: bool
) -> KernelPlan:
    todo = plan(ours, _without(desired, foreign_keys))
    if adds_only:
        kept = {item.key for item in ours if not isinstance(item, Hook)}  # an earlier process's may be lost by now
        return Plan(frozenset(_without(todo.put, kept)), frozenset())
    return todo


def _without(objects: Set[KernelObject], keys: Set[Hashable]) -> Set[KernelObject]:
    """The objects that have none of these keys."""
    return {item for item in objects if item.key not in keys} if keys else objects
