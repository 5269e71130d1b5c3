"""A kernel in memory, which is asked and changed as the real one is."""

import asyncio
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Mapping, Set
from dataclasses import dataclass, field

from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.kinds import kind_of, text
from flannelette.services.dataplane.netlink.monitor import Change
from flannelette.services.dataplane.netlink.object_text import DeviceNames
from flannelette.services.dataplane.netlink.objects import KernelObject, Plan, Route, WireguardPeer, steps


@dataclass
class FakeKernel:
    """An `Actuator`: one object for each key, and a delete of a route matches more than it seems to say.

    Refuses what it is told to, and notes what it was asked to do.
    """

    objects: set[KernelObject] = field(default_factory=set)
    names: DeviceNames = field(default_factory=dict)
    refused: dict[Hashable, str] = field(default_factory=dict)
    """Objects, or keys of objects, that can be neither put nor deleted, with the kernel's words."""
    fault: Exception | None = None
    """Raised by the next call."""
    done: list[str] = field(default_factory=list)
    """`replace 10.5.2.0/24 via ...`, in order."""
    dumps: int = 0
    states: dict[Hashable, object] = field(default_factory=dict)
    faults: dict[Hashable, str] = field(default_factory=dict)
    told: asyncio.Queue[list[Change]] = field(default_factory=asyncio.Queue)
    """What `changes` tells."""

    def dump(self) -> str:
        """The tables, as `ip neigh`, `bridge fdb` and `ip route` print them."""
        return "".join(f"{kind_of(item).label} {text(item, self.names)}\n" for item in sorted(self.objects))

    def put(self, item: KernelObject) -> None:
        """Another program replaces the object with this key."""
        self.objects -= _replaced_by(item, self.objects)
        if isinstance(item, WireguardPeer):
            self.objects = {_without_allowed_ips(each, item) for each in self.objects}
        self.objects.add(item)

    async def contents(
        self, families: Collection[int], devices: Collection[int], desired: Set[KernelObject] = frozenset()
    ) -> Contents:
        """See Actuator."""
        self._fail()
        self.dumps += 1
        routes = frozenset(o for o in self.objects if isinstance(o, Route) and o.family in families)
        others = (o for o in self.objects if not isinstance(o, Route))
        found = frozenset(o for o in others if not o.ifindex or o.ifindex in devices)
        return Contents(routes, found, self.states, self.faults)

    async def routes(self, family: int, *, protocol: int = 0, ifindex: int = 0) -> frozenset[Route]:
        """See Actuator."""
        found = (await self.contents([family], ())).routes
        return frozenset(r for r in found if protocol in (0, r.protocol) and ifindex in (0, r.ifindex))

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """See Actuator. As with the kernel, a route stays while the put of another to its destination has failed."""
        self._fail()
        failed: dict[KernelObject, str] = {}
        for verb, items in steps(plan):
            missed = {item.destination for item in failed if isinstance(item, Route)}
            for item in items:
                if reason := self.refused.get(item) or self.refused.get(item.key):
                    failed[item] = reason
                elif verb == "del" and isinstance(item, Route) and item.destination in missed:
                    failed[item] = "not deleted, because the route that shall replace it could not be made"
                else:
                    self.done.append(f"{verb} {text(item, self.names)}")
                    if verb == "replace":
                        self.put(item)
                    else:
                        self.objects -= _deleted_by(item, self.objects)
        return failed

    async def changes(self) -> AsyncIterator[list[Change]]:
        """See Actuator."""
        while True:
            yield await self.told.get()

    def waiting(self) -> list[Change]:
        """See Actuator."""
        return [] if self.told.empty() else self.told.get_nowait()

    def _fail(self) -> None:
        fault, self.fault = self.fault, None
        if fault is not None:
            raise fault


def _without_allowed_ips(each: KernelObject, taker: WireguardPeer) -> KernelObject:
    """Returns the object without the allowed IPs that a peer of the same device takes: on one device an allowed IP is
    of one peer, the last one that was given it.
    """
    if not isinstance(each, WireguardPeer) or each.ifindex != taker.ifindex:
        return each
    return each._replace(
        allowed_ips=tuple(network for network in each.allowed_ips if network not in taker.allowed_ips)
    )


def _replaced_by(item: KernelObject, objects: Iterable[KernelObject]) -> set[KernelObject]:
    return {each for each in objects if each.key == item.key}


def _deleted_by(item: KernelObject, objects: Iterable[KernelObject]) -> set[KernelObject]:
    """Returns what a delete removes, of routes the one with the lowest metric that fits: a delete with metric 0 names
    no metric.
    """
    if not isinstance(item, Route):
        return _replaced_by(item, objects)
    what = (item.destination, item.protocol, item.gateway, item.ifindex)
    found = [
        route
        for route in objects
        if isinstance(route, Route)
        and (route.destination, route.protocol, route.gateway, route.ifindex) == what
        and item.metric in (0, route.metric)
    ]
    return {min(found, key=lambda route: route.metric)} if found else set()
