"""The kernel of a simulated node: an object for each key, and what it must hold by the leases of the store."""

import asyncio
from collections.abc import AsyncIterator, Collection, Hashable, Iterable, Iterator, Mapping, Set
from ipaddress import IPv4Address
from typing import Final, TypeAlias

from flannelette.services.core.leases.lease import Lease, VxlanData
from flannelette.services.dataplane.netlink.actuator import Contents
from flannelette.services.dataplane.netlink.monitor import Change
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Plan, Route

Entry: TypeAlias = tuple[str, str, str]
"""Table, what it is asked for, and what it answers: `("route", "10.0.1.0/24", "10.0.1.0")`."""
_NOTHING_FAILED: Final[Mapping[KernelObject, str]] = {}


class SimulatedKernel:
    """An Actuator. It refuses nothing, and nobody else changes it; it stays when its dataplane is started again."""

    def __init__(self) -> None:
        self.objects: dict[Hashable, KernelObject] = {}

    async def contents(
        self, families: Collection[int], devices: Collection[int], desired: Set[KernelObject] = frozenset()
    ) -> Contents:
        """See Actuator."""
        routes = frozenset(o for o in self.objects.values() if isinstance(o, Route) and o.family in families)
        others = frozenset(o for o in self.objects.values() if not isinstance(o, Route) and o.ifindex in devices)
        return Contents(routes, others)

    async def routes(self, family: int, *, protocol: int = 0, ifindex: int = 0) -> frozenset[Route]:
        """See Actuator."""
        found = (await self.contents([family], ())).routes
        return frozenset(r for r in found if protocol in (0, r.protocol) and ifindex in (0, r.ifindex))

    async def apply(self, plan: Plan[KernelObject]) -> Mapping[KernelObject, str]:
        """See Actuator."""
        for item in plan.put:
            self.objects[item.key] = item
        for item in plan.delete:
            if self.objects.get(item.key) == item:
                del self.objects[item.key]
        return _NOTHING_FAILED

    async def changes(self) -> AsyncIterator[list[Change]]:
        """See Actuator. There is no other program, so nothing comes."""
        await asyncio.Event().wait()
        yield []

    def waiting(self) -> list[Change]:
        """See Actuator."""
        return []

    def entries(self) -> frozenset[Entry]:
        """What it holds, in words that say nothing of how it was programmed."""
        return frozenset(_entry(item) for item in self.objects.values())


def entries_for(node: str, leases: Iterable[Lease]) -> frozenset[Entry]:
    """What the kernel of a node must hold with VXLAN: for each lease of another node what flannel's format says."""
    return frozenset(entry for lease in leases if lease.node != node for entry in _entries_of(lease))


def _entries_of(lease: Lease) -> Iterator[Entry]:
    for subnet in lease.subnets:
        assert isinstance(subnet.data, VxlanData)  # noqa: S101 - every simulated node publishes its MAC
        first = str(subnet.cidr.network_address)
        yield "route", str(subnet.cidr), first
        yield "neighbour", first, subnet.data.mac
        yield "fdb", subnet.data.mac, str(subnet.public_address)


def _entry(item: KernelObject) -> Entry:
    if isinstance(item, Route):
        return "route", f"{IPv4Address(item.dst)}/{item.length}", str(IPv4Address(item.gateway))
    if isinstance(item, Neighbour):
        return "neighbour", str(IPv4Address(item.dst)), item.mac.hex(":")
    if isinstance(item, FdbEntry):
        return "fdb", item.mac.hex(":"), str(IPv4Address(item.dst))
    return "unexpected", repr(item), ""
