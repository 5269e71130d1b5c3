"""Reconciles kernel objects: reads what is there, plans `desired - actual`, and carries the plan out.

One way for everything and for a part: everything is compared with a dump of the kernel, the objects of a few peers
with what the last dump and our own changes say. Teardown is the same with nothing desired.
"""

from collections.abc import Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from flannelette.services.core.family import FAMILIES, Address, Family, Network, family_of
from flannelette.services.dataplane.kernel.ownership import (
    OwnedState,
    OwnershipRules,
    classify,
    next_hop_of,
    tuned_routes,
    wins,
)
from flannelette.services.dataplane.netlink.actuator import Actuator, Contents
from flannelette.services.dataplane.netlink.iproute2_text import metrics_text, mtu_of
from flannelette.services.dataplane.netlink.objects import HOOK, ROUTE, Hook, KernelObject, Plan, Route, plan
from flannelette.services.dataplane.peers.peer import Peer, PeerContext

KernelPlan: TypeAlias = Plan[KernelObject]


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of the kernel that a comparison reads, and the rules that say which objects are ours."""

    families: tuple[Family, ...]
    rules: OwnershipRules
    adds_only: bool = False
    """Nothing that exists is deleted or replaced."""


@dataclass(frozen=True, slots=True)
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
    """Ours and present, by the last dump and our own changes."""
    failures: dict[KernelObject, str] = field(default_factory=dict)
    """Desired objects that the kernel refused, with its reason. Tried again at each full comparison."""
    faults: Mapping[Hashable, str] = field(default_factory=dict)
    """By slot, why an object does not work although it is as desired, at the last dump."""
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
    """By destination, the foreign route with the lowest metric."""
    _deleted_keys: set[Hashable] = field(default_factory=set)

    async def compare(self, desired: Set[KernelObject], scope: Scope) -> Comparison:
        """What `reconcile` would do with everything, from a dump. Changes nothing."""
        found = await self.kernel.contents([f.af for f in scope.families], scope.rules.devices, desired)
        tuned = tuned_routes(found.routes, desired, scope.rules.protocol)
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
