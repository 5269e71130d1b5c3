"""Days in a dataplane's life, in virtual time over a real kernel.

The dataplane's loop and the lease service's parts run in this process on a clock that jumps.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final, cast

import grpc.aio

from flannelette.lease.v1 import lease_pb2
from flannelette.services.core.errors import NotFound, Unavailable
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Progress, Subnet, VxlanData, lease_key
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Upserted
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.netlink.kernel import KernelSocket
from flannelette.services.dataplane.netlink.monitor import Monitor
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.dataplane.watch import watch_kernel
from flannelette.services.lease.admission import GuardSettings, StorePipeline
from flannelette.services.lease.service import Identity, LeaseService
from flannelette.services.lease.stores.store import Changed, Snapshot
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.cache import StateFile
from flannelette.services.runtime.lease.feed import LeaseConnection, read_step, steps_of
from flannelette.services.runtime.lease.wire import lease_from_proto, request_to_proto
from flannelette.services.runtime.telemetry.health import Health
from tests.examples.leases import SMALL
from tests.hosts.namespaces import NetworkNamespace
from tests.services.lease import FakeStore
from tests.virtual_time import now, run_virtually

HOUR: Final = 3600.0
DAY: Final = 24 * HOUR
EPOCH: Final = 1_800_000_000.0


def clock() -> float:
    return EPOCH + now()


def peer(number: int, expires_at: float | None = None) -> Lease:
    data = VxlanData(1, f"02:00:00:00:00:{number:02x}")
    part = Subnet(ip_network(f"10.5.{number}.0/24"), ip_address(f"10.99.1.{number}"), data)
    return Lease(lease_key([part.cidr]), f"n{number}", (part,), "vxlan", expires_at)


class Etcd(FakeStore):
    """Leases of 24 h, which run out while it is there, and are told to whoever watches."""

    def __init__(self, *leases: Lease) -> None:
        super().__init__(*leases)
        self.events.put_nowait(self.snapshot())

    def snapshot(self) -> Snapshot:
        return Snapshot(dict(self.leases), SMALL)

    async def relist(self) -> Snapshot:
        return self.snapshot()

    async def acquire(self, request: LeaseRequest) -> Lease:
        self._fail()
        (part,) = request.parts
        known = next((lease for lease in self.leases.values() if lease.node == request.node), None)
        cidr = known.subnets[0].cidr if known else part.previous or ip_network("10.5.200.0/24")
        subnet = Subnet(cidr, part.public_address, part.data)
        lease = Lease(lease_key([cidr]), request.node, (subnet,), request.backend_type, clock() + DAY)
        self.put(lease)
        return lease

    async def renew(self, node: str, name: str, machine: str = "") -> Lease:
        self._fail()
        if name not in self.leases:
            raise NotFound("the lease is gone: acquire again")
        self.put(self.leases[name].with_time(clock() + DAY))
        return self.leases[name]

    def put(self, lease: Lease) -> None:
        self.leases[lease.name] = lease
        self.events.put_nowait(Changed((Upserted(lease),)))

    def go_away(self) -> None:
        self.fault = Unavailable("etcd is away")
        self.events.put_nowait(StoreStatus(self.kind, connected=False, error="etcd is away"))

    def come_back(self) -> None:
        self.fault = None
        self.events.put_nowait(self.snapshot())

    async def expire(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(60)
            for lease in [each for each in self.leases.values() if (each.expires_at or clock()) < clock()]:
                if self.fault is None:
                    del self.leases[lease.name]
                    self.events.put_nowait(Changed((Removed(lease.name),)))


class Connection:
    """To the lease service in this process, without a wire that a clock could not hurry."""

    address = "in this process"
    node, machine = "n1", ""
    absent_reason = ""

    def __init__(self, service: LeaseService) -> None:
        self.service = service
        self.is_away = asyncio.Event()
        self.stub = self

    def watch(self, request: lease_pb2.WatchLeasesRequest) -> AsyncIterator[Step]:
        return steps_of(self.WatchLeases(request), read_step)

    async def WatchLeases(self, request: lease_pb2.WatchLeasesRequest) -> AsyncIterator[Any]:  # noqa: N802 - gRPC's
        stream = self.service.WatchLeases(request, cast("Any", None))
        gone = asyncio.ensure_future(self.is_away.wait())
        try:
            while not self.is_away.is_set():
                told = asyncio.ensure_future(cast("Coroutine[Any, Any, bytes]", anext(stream)))
                await asyncio.wait((told, gone), return_when=asyncio.FIRST_COMPLETED)
                if not told.done():
                    told.cancel()
                    break
                yield lease_pb2.WatchLeasesResponse.FromString(await told)
            raise grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata())
        finally:
            gone.cancel()

    async def lost(self, error: grpc.aio.AioRpcError) -> str:
        await asyncio.sleep(20)  # a host that is gone answers nothing
        return "the lease service is away"

    async def acquire(self, request: LeaseRequest) -> Lease:
        self._reach()
        response = await self.service.AcquireLease(request_to_proto(request), cast("Any", None))
        return lease_from_proto(response.lease)

    async def renew(self, name: str) -> Lease:
        self._reach()
        request = lease_pb2.RenewLeaseRequest(node=self.node, name=name)
        return lease_from_proto((await self.service.RenewLease(request, cast("Any", None))).lease)

    async def report(self, progress: Progress) -> float:
        self._reach()
        return 60.0

    def _reach(self) -> None:
        if self.is_away.is_set():
            raise Unavailable("the lease service is away")


@dataclass
class World:
    etcd: Etcd
    connection: Connection
    dataplane: Controller
    health: Health
    kernel: KernelSocket
    removed: list[str] = field(default_factory=list)
    """What the kernel said that was taken away."""

    async def until_ready(self, within: float) -> None:
        async with asyncio.timeout(within):
            while not (self.health.ready and self.dataplane.own.is_settled):
                await self.health.changed()

    async def objects(self) -> frozenset[object]:
        (device,) = self.dataplane.tracker.devices.values()
        found = await self.kernel.contents([2], [device.index])
        return frozenset({*await self.kernel.routes(2, protocol=77), *found.on_devices})

    async def watch(self, monitor: Monitor) -> None:
        async for changes in monitor.changes():
            self.removed += [str(change) for change in changes if change.gone]


def settings(directory: Path) -> DataplaneSettings:
    return DataplaneSettings(node="n1", subnet_file=directory / "subnet.env", iface=("eth0",), audit_interval=600)


def live(
    netns: NetworkNamespace,
    directory: Path,
    story: Callable[[World], Coroutine[Any, Any, None]],
    *,
    is_away: bool = False,
) -> None:
    """Plays a story on a host whose dataplane has just got ready; or has just started, with nobody there."""

    async def main() -> None:
        etcd = Etcd(*(peer(number) for number in range(2, 7)))
        broker = Broker(etcd.kind, epoch="epoch")
        gate = StorePipeline(etcd, broker, GuardSettings(0.5, 30))
        health = Health()
        service = LeaseService(etcd, broker, gate, Identity(""), Health())
        connection = Connection(service)
        with (
            Monitor() as monitor,
            Monitor() as ear,
            KernelSocket(monitor=monitor) as kernel,
            StateFile(str(directory), "dataplane") as state,
        ):
            dataplane = Controller(
                settings(directory), cast("LeaseConnection", connection), kernel, BUILT, health, state, clock
            )
            world = World(etcd, connection, dataplane, health, kernel)
            jobs = (
                gate.follow(),
                etcd.expire(),
                dataplane.feed.run(),
                dataplane.renewer.run(),
                dataplane.reporter.run(),
                dataplane.run(),
                watch_kernel(dataplane, kernel, kernel.port),
                world.watch(ear),
            )
            tasks = [asyncio.ensure_future(job) for job in jobs]
            try:
                if is_away:
                    connection.is_away.set()
                else:
                    await world.until_ready(60)
                world.removed.clear()
                await story(world)
                assert not any(task.done() for task in tasks)
            finally:
                for task in tasks:
                    task.cancel()
                with suppress(asyncio.CancelledError):
                    await asyncio.gather(*tasks)

    with host(netns):
        run_virtually(main())


@contextmanager
def host(netns: NetworkNamespace) -> Iterator[None]:
    netns.ip("link", "add", "eth0", "type", "veth", "peer", "far")
    for name in ("eth0", "far"):
        netns.ip("link", "set", name, "up")
    netns.ip("address", "add", "10.99.0.11/16", "dev", "eth0")
    with netns.inside():
        yield
