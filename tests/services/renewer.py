"""A holder of a lease and the lease service that it talks to, played in virtual time."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Network, ip_address
from typing import Any

from flannelette.services.core.errors import FlanneletteError
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, Subnet, VxlanData, lease_key
from flannelette.services.core.leases.table import Table
from flannelette.services.dataplane.events import NodeJournal
from flannelette.services.dataplane.node.lease_renewer import LeaseRenewer
from tests.virtual_time import now, run_virtually

DAY = 86_400.0
REQUEST = LeaseRequest("n1", "vxlan", (FamilyRequest(ip_address("10.99.0.11"), VxlanData(1, "02:00:00:00:00:01")),))
OTHER = replace(REQUEST, parts=(replace(REQUEST.parts[0], data=VxlanData(1, "02:00:00:00:00:02")),))
CIDR = IPv4Network("10.5.27.0/24")


@dataclass
class FakeService:
    """Gives 10.5.27.0/24 for `seconds`, unless it has a fault; notes when it was asked for what."""

    seconds: float | None = DAY
    faults: list[FlanneletteError] = field(default_factory=list)
    """Of the next calls."""
    acquired: list[tuple[float, LeaseRequest]] = field(default_factory=list)
    renewed: list[float] = field(default_factory=list)
    cidr: IPv4Network = CIDR
    skew: float = 0.0
    reserved: bool = False
    takes: float = 0.0
    """Seconds until it answers."""
    during: Callable[[], None] | None = None
    """Happens while a call is under way."""

    async def acquire(self, request: LeaseRequest) -> Lease:
        self.acquired.append((now(), request))
        await self._answer()
        return self.lease(request)

    async def renew(self, name: str) -> Lease:
        self.renewed.append(now())
        await self._answer()
        return self.lease(self.acquired[-1][1])

    def lease(self, request: LeaseRequest = REQUEST) -> Lease:
        part = request.parts[0]
        expires_at = None if self.seconds is None else now() + self.seconds + self.skew
        subnet = Subnet(self.cidr, part.public_address, part.data)
        return Lease(lease_key([self.cidr]), "n1", (subnet,), "vxlan", expires_at, self.reserved)

    @property
    def times(self) -> list[float]:
        return [time for time, _ in self.acquired]

    async def _answer(self) -> None:
        await asyncio.sleep(self.takes)
        if self.during:
            self.during()
        if self.faults:
            raise self.faults.pop(0)


@dataclass
class Clock:
    """The clocks of the machine, of which virtual time is the base."""

    set_by: float = 0.0
    """Seconds by which the wall clock has been set."""
    suspended: float = 0.0
    """Seconds for which the machine was suspended: no task ran, and all clocks went on."""

    def wall(self) -> float:
        return self.boot() + self.set_by

    def boot(self) -> float:
        return now() + self.suspended


@dataclass
class Scene:
    service: FakeService
    renewer: LeaseRenewer
    wakes: list[float]
    clock: "Clock"

    def table(self, *leases: Lease) -> Table:
        return Table({lease.name: lease for lease in leases}, synced=True)


def play(script: Callable[[Scene], Coroutine[Any, Any, None]], service: FakeService, margin: float = 3600.0) -> None:
    """Runs the script beside a holder that wants REQUEST."""

    async def main() -> None:
        wakes, clock = list[float](), Clock()
        holder = LeaseRenewer(service, margin, lambda: wakes.append(now()), NodeJournal(), clock.wall, clock.boot)
        task = asyncio.create_task(holder.run())
        try:
            await asyncio.sleep(0.001)
            assert service.acquired == []
            holder.set_request(REQUEST)
            await asyncio.sleep(0.001)
            await script(Scene(service, holder, wakes, clock))
            assert not task.done()
        finally:
            task.cancel()

    run_virtually(main())
