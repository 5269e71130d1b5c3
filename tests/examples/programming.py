"""A node's decisions over a kernel: leases and a context go in, the kernel's objects in iproute2's words come out."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Generic, TypeVar

from flannelette.services.core.leases.lease import Lease
from flannelette.services.dataplane.events import NodeJournal
from flannelette.services.dataplane.kernel.programmer import PeerProgrammer
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.objects import Hook, IkeConnection, IkeKey, KernelObject, XfrmPolicy
from flannelette.services.dataplane.peers import PeerContext
from tests.examples.dataplane import NAMES, FakeKernel
from tests.examples.leases import by_name

K = TypeVar("K", bound=Actuator)
_OF_THE_KERNEL: Final = 2
"""The protocol of routes that the kernel makes of addresses."""
_LOOPBACK: Final = {1: "lo"}


class Node(Generic[K]):
    """n1: its leases and context, and the dataplane's one way from them into a kernel."""

    def __init__(self, kernel: K, context: PeerContext, *leases: Lease) -> None:
        self.kernel = kernel
        self.context = context
        self.leases = by_name(*leases)
        self.journal = NodeJournal()
        self.programmer = PeerProgrammer("n1", kernel, self.journal)
        self.reconciler = self.programmer.reconciler

    async def program(self, *names: str) -> None:
        """Brings the kernel to what the leases need: those of these names, or by a full comparison."""
        await self.programmer.program(self.context, self.leases, names or None)

    async def change(self, *leases: Lease) -> None:
        """These are the leases now; programs those that are not as they were, and only those."""
        last, self.leases = self.leases, by_name(*leases)
        changed = [name for name in {**last, **self.leases} if last.get(name) != self.leases.get(name)]
        await self.programmer.program(self.context, self.leases, changed)

    async def tear_down(self) -> None:
        """Nothing is desired any more. What is on the overlay devices stays, because it goes with the devices."""
        assert await self.kernel.apply(await self.programmer.plan(self.context, None)) == {}
        self.programmer.forget()

    async def dump(self, names: Mapping[int, str] = NAMES) -> str:
        """What the kernel holds now in iproute2's words, without what the kernel itself makes of addresses."""
        families = [network.family.af for network in self.context.network.families]
        found = await self.kernel.contents(families, [each.index for each in self.context.links.devices.values()])
        routes = {route for route in found.routes if route.protocol != _OF_THE_KERNEL}
        return FakeKernel({*routes, *found.on_devices}, _LOOPBACK | dict(names)).dump()


def fake_node(context: PeerContext, *leases: Lease) -> Node[FakeKernel]:
    """Over the fake kernel, which is empty."""
    return Node(FakeKernel(), context, *leases)


def with_devices_of(context: PeerContext, names: Mapping[int, str]) -> PeerContext:
    """The context on a host that has other interface indexes."""
    links, index = context.links, _indexes(names)
    devices = {family: replace(each, index=index[each.index]) for family, each in links.devices.items()}
    underlay = replace(links.underlay, index=index[links.underlay.index])
    return replace(context, links=replace(links, underlay=underlay, devices=devices))


def on_devices_of(item: KernelObject, names: Mapping[int, str]) -> KernelObject:
    """The object on that host."""
    if isinstance(item, Hook | XfrmPolicy | IkeKey | IkeConnection):
        return item
    return item._replace(ifindex=_indexes(names)[item.ifindex])


def _indexes(names: Mapping[int, str]) -> Mapping[int, int]:
    """Of the interfaces of `NAMES`, there."""
    there = {name: index for index, name in names.items()}
    return {index: there[name] for index, name in NAMES.items()}
