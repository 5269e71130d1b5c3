"""Holds the kernel to what is desired: `desired - actual`, for some peers or for all, by the same plan."""

from collections.abc import Hashable, Set
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from services.core.family import Family
from services.core.plan import Plan, plan
from services.dataplane.netlink.objects import ROUTE, KernelObject, Route
from services.dataplane.netlink.socket import KernelSocket, Mark
from services.dataplane.ownership import Claim, Domain, claim, wins

KernelPlan: TypeAlias = Plan[KernelObject]

_NOTHING: Final[KernelPlan] = Plan(frozenset(), frozenset())


@dataclass(frozen=True, slots=True)
class Scope:
    """Where to look in the kernel."""

    families: tuple[Family, ...]
    domain: Domain
    adds_only: bool = False
    """Nothing that is there is deleted or replaced."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of what is desired with what the kernel holds."""

    todo: KernelPlan
    claim: Claim
    absent: frozenset[KernelObject]
    """What is desired and not there, also what cannot be put."""
    mark: Mark
    """Of the dump."""


@dataclass(frozen=True, slots=True)
class _Rest:
    """There was nothing to do."""

    wanted: Set[KernelObject]
    """The very set, for `update` tells when something else is in it."""
    scope: Scope
    mark: Mark


@dataclass(slots=True)
class Reconciler:
    """What we know to be in the kernel, and the only hand that changes it."""

    kernel: KernelSocket
    programmed: set[KernelObject] = field(default_factory=set)
    """Ours and there, as far as the last look and our own changes tell."""
    emptied: set[Hashable] = field(default_factory=set)
    """Slots of neighbours and forwarding entries that we took something out of and have put nothing into since.

    Whoever hears of it may clear it. (Of a route the kernel tells who has deleted it.)
    """
    failures: dict[KernelObject, str] = field(default_factory=dict)
    """Wanted and refused, with the kernel's reason. Tried again at each resync."""
    foreign: tuple[Route, ...] = ()
    """Routes inside the network that are not ours."""
    foreign_devices: Set[int] = frozenset()
    """What they go out of."""
    defaults: tuple[Route, ...] = ()
    """Routes to everywhere, at the last look."""
    _occupied: Set[Hashable] = frozenset()
    """Their slots: what we put there would replace them."""
    _first: dict[Hashable, Route] = field(default_factory=dict)
    """Of each destination the one with the lowest metric."""
    _rest: _Rest | None = None
    """The last look, if it left nothing to do and nothing has been done since."""

    async def compare(self, desired: Set[KernelObject], scope: Scope) -> Comparison:
        """What a resync would do, from a dump of the kernel. Changes nothing."""
        found = await self.kernel.contents([family.af for family in scope.families], scope.domain.devices)
        divided = claim(found.routes, found.on_devices, desired, scope.domain)
        possible = _without(desired, {route.slot for route in divided.foreign})
        todo = plan(divided.ours, possible)
        absent = todo.put if possible is desired else frozenset(desired - divided.ours)
        if scope.adds_only:
            todo = Plan(frozenset(_without(todo.put, {item.slot for item in divided.ours})), frozenset())
        return Comparison(todo, divided, absent, found.mark)

    async def resync(self, desired: Set[KernelObject], scope: Scope, *, is_suspect: bool = False) -> KernelPlan:
        """Compares everything and brings it into line; returns what it took. `failures` has what was refused.

        When there was nothing to do last time, and nobody has said that the kernel `is_suspect`, most often one
        glance tells that all of it is still as it was.
        """
        rest, self._rest = self._rest, None
        is_same = rest is not None and rest.wanted is desired and rest.scope == scope
        if rest is not None and is_same and not is_suspect and await self.kernel.is_still(rest.mark):
            self._rest = rest
            return _NOTHING
        comparison = await self.compare(desired, scope)
        todo, divided, absent = comparison.todo, comparison.claim, comparison.absent
        self._note(divided)
        present = desired - absent  # the same values as those of the dump, but once in memory
        strangers = divided.ours - desired if len(divided.ours) > len(present) else frozenset[KernelObject]()
        replaced = {item.slot for item in todo.put} if divided.ours else set[Hashable]()
        self.programmed = {*_without(present, replaced), *_without(strangers, replaced)}
        self.failures.clear()
        self.emptied.clear()
        await self._apply(strangers, todo)
        if not todo:
            self._rest = _Rest(desired, scope, comparison.mark)
        return todo

    async def update(self, before: Set[KernelObject], after: Set[KernelObject]) -> KernelPlan:
        """The same for the objects of a few peers, from what we know instead of from a dump."""
        self._rest = None
        actual = before & self.programmed
        todo = plan(actual, _without(after, self._occupied))
        for item in before:
            self.failures.pop(item, None)
        await self._apply(actual - after, todo)
        return todo

    async def look(self, desired: Set[KernelObject], scope: Scope) -> None:
        """Notes what is there beside ours, and changes nothing."""
        routes = [route for family in scope.families for route in await self.kernel.routes(family.af)]
        self._rest = None
        self._note(claim(routes, (), desired, scope.domain))

    def forget(self) -> None:
        """What was programmed is gone, by somebody's hand."""
        self.programmed.clear()
        self._rest = None

    def shadow(self, route: Route) -> Route | None:
        """The foreign route that wins over this one, if any."""
        foreign = self._first.get(route.destination)
        return foreign if foreign is not None and wins(foreign, route) else None

    def _note(self, divided: Claim) -> None:
        by_metric = sorted(divided.foreign, key=lambda route: -route.metric)
        self.foreign, self.defaults = divided.foreign, divided.defaults
        self.foreign_devices = {route.ifindex for route in divided.foreign if route.ifindex}
        self._occupied = {route.slot for route in divided.foreign}
        self._first = {route.destination: route for route in by_metric}

    async def _apply(self, strangers: Set[KernelObject], todo: KernelPlan) -> None:
        if self.emptied:
            self.emptied -= {item.slot for item in todo.put}
        failed = await self.kernel.apply(todo) if todo else {}
        self.emptied |= {item.slot for item in todo.delete if item.kind != ROUTE and item not in failed}
        self.programmed -= strangers
        self.programmed |= todo.put
        if failed:
            self.programmed -= todo.put & failed.keys()
            self.programmed |= todo.delete & failed.keys()
            self.failures.update(failed)


def _without(objects: Set[KernelObject], slots: Set[Hashable]) -> Set[KernelObject]:
    """The objects that are in none of these slots."""
    return {item for item in objects if item.slot not in slots} if slots else objects
