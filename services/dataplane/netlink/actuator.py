"""The protocols by which objects are read and changed: rtnetlink's, those beside it, and both together."""

from collections.abc import AsyncIterator, Collection, Hashable, Mapping, Sequence, Set
from dataclasses import field
from typing import Protocol

from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.netlink.monitor import Change
from flannelette.services.dataplane.netlink.objects import KernelObject, Plan, Route


@frozen
class Contents:
    """What the kernel holds, at one look."""

    routes: frozenset[Route]
    """All routes of the main table, foreign ones of every shape too."""
    on_devices: frozenset[KernelObject]
    """All other objects: neighbours and forwarding entries, and those of a `PartActuator`."""
    states: Mapping[Hashable, object] = field(default_factory=dict)
    """What is to be told of an object beside its value, by slot; its `str` is for people."""
    faults: Mapping[Hashable, str] = field(default_factory=dict)
    """Why an object does not work although it is as it should be, by slot."""


class Actuator(Protocol):
    """Reads objects of the kernel, changes them, and tells what others change.

    rtnetlink is one (`KernelSocket`); with objects that it does not carry, `CombinedActuator`. Raises Misconfigured
    where this process has no right to change anything, Unavailable where there is no answer.
    """

    async def contents(
        self, families: Collection[int], devices: Collection[int], desired: Set[KernelObject] = frozenset()
    ) -> Contents:
        """All objects in these families (AF numbers), and on these devices (ifindex) where objects are a device's.

        `desired` is what they will be compared with: where the kernel itself changes a part of an object, that may
        count as no difference.
        """
        ...

    async def routes(self, family: int, *, protocol: int = 0, ifindex: int = 0) -> frozenset[Route]:
        """The routes of the main table in one family (an AF number), or those of a protocol or device (0: any)."""
        ...

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """Carries out a plan in the order of `steps`; returns what failed, with the reason.

        One failure stops no other object. To delete what is gone already is no failure.
        """
        ...

    def changes(self) -> AsyncIterator[list[Change]]:
        """What others change, as it happens; with a change of kind OVERRUN when some of it was lost."""
        ...

    def waiting(self) -> list[Change]:
        """What is known already and `changes` has not yielded yet."""
        ...


class PartActuator(Protocol):
    """Reads and changes the objects of some kinds that rtnetlink does not carry. Raises as Actuator."""

    @property
    def kinds(self) -> frozenset[int]:
        """The first fields of its objects."""
        ...

    async def contents(self, devices: Collection[int], desired: Set[KernelObject] = frozenset()) -> Contents:
        """All of its objects, where they are a device's those on these devices; `desired` as in Actuator."""
        ...

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """Carries out a plan of its objects; returns what failed, with the reason."""
        ...

    async def finish(self, plan: Plan[KernelObject]) -> None:
        """Called after a whole plan, objects of other kinds included, and after an empty one if there are faults."""
        ...


class CombinedActuator:
    """An `Actuator`: rtnetlink, and the actuators of what it does not carry.

    Their objects are put before those of rtnetlink and deleted after them, as routes lead to them.
    """

    def __init__(self, rtnetlink: Actuator, parts: Sequence[PartActuator]) -> None:
        self._rtnetlink = rtnetlink
        self._parts = parts

    async def contents(
        self, families: Collection[int], devices: Collection[int], desired: Set[KernelObject] = frozenset()
    ) -> Contents:
        """See Actuator."""
        found = await self._rtnetlink.contents(families, devices)
        for part in self._parts:
            more = await part.contents(devices, desired)
            if more.on_devices:
                objects, states, faults = found.on_devices | more.on_devices, more.states, more.faults
                found = Contents(found.routes, objects, {**found.states, **states}, {**found.faults, **faults})
        return found

    async def routes(self, family: int, *, protocol: int = 0, ifindex: int = 0) -> frozenset[Route]:
        """See Actuator."""
        return await self._rtnetlink.routes(family, protocol=protocol, ifindex=ifindex)

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """See Actuator."""
        nothing = frozenset[KernelObject]()
        others, failed = plan, dict[KernelObject, str]()
        todo = []
        for part in self._parts:
            put, delete = (frozenset(o for o in some if o.kind in part.kinds) for some in (plan.put, plan.delete))
            if put or delete:
                todo.append((part, put, delete))
                others = Plan(others.put - put, others.delete - delete)
        for part, put, _ in todo:
            failed.update(await part.apply(Plan(put, nothing)) if put else {})
        failed.update(await self._rtnetlink.apply(others) if others else {})
        for part, _, delete in todo:
            failed.update(await part.apply(Plan(nothing, delete)) if delete else {})
        for part in self._parts:
            await part.finish(plan)
        return failed

    def changes(self) -> AsyncIterator[list[Change]]:
        """See Actuator."""
        return self._rtnetlink.changes()

    def waiting(self) -> list[Change]:
        """See Actuator."""
        return self._rtnetlink.waiting()
