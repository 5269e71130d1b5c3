"""Lease service or store away for a day: the kernel stays as it is, and when they are back all is well again.

The dataplane's loop and the lease service's parts run in this process on a clock that jumps, the kernel is real.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any, Final, cast

import grpc.aio
from flannelette.lease.v1 import lease_pb2

from services.core.errors import NotFound, Unavailable
from services.core.lease import Lease, LeaseRequest, Subnet, VxlanData, lease_key
from services.core.progress import Progress
from services.core.table import Removed, StoreStatus, Upserted
from services.dataplane.dataplane import Dataplane
from services.dataplane.healing import heal
from services.dataplane.netlink.monitor import Monitor
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.settings import DataplaneSettings
from services.dataplane.status import status_of
from services.lease.broker import Broker
from services.lease.guard.gate import Gate, GuardSettings
from services.lease.identity import Identity
from services.lease.service import LeaseService
from services.lease.store import Changed, Snapshot
from services.runtime.feed import LeaseConnection
from services.runtime.health import Health
from services.runtime.memory import encode, snapshot_pieces
from services.runtime.state_file import StateFile
from services.runtime.wire import lease_from_proto, request_to_proto
from tests.lease_examples import SMALL
from tests.lease_service import FakeStore
from tests.namespaces import NetworkNamespace
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
        (wish,) = request.wishes
        known = next((lease for lease in self.leases.values() if lease.node == request.node), None)
        cidr = known.subnets[0].cidr if known else wish.previous or ip_network("10.5.200.0/24")
        part = Subnet(cidr, wish.public_address, wish.data)
        lease = Lease(lease_key([cidr]), request.node, (part,), request.backend_type, clock() + DAY)
        self.put(lease)
        return lease

    async def renew(self, node: str, name: str) -> Lease:
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
    node = "n1"
    nobody = ""

    def __init__(self, service: LeaseService) -> None:
        self.service = service
        self.is_away = asyncio.Event()
        self.stub = self

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
    dataplane: Dataplane
    health: Health
    kernel: KernelSocket
    removed: list[str] = field(default_factory=list)
    """What the kernel said that was taken away."""

    async def until_ready(self, within: float) -> None:
        async with asyncio.timeout(within):
            while not (self.health.ready and self.dataplane.own.is_settled):
                await self.health.changed()

    async def objects(self) -> frozenset[object]:
        (device,) = self.dataplane.footing.devices.values()
        found = await self.kernel.neighbours(2, device.index), await self.kernel.fdb_entries(device.index)
        return frozenset({*await self.kernel.routes(2, protocol=77), *found[0], *found[1]})

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
        gate = Gate(etcd, broker, GuardSettings(0.5, 30))
        health = Health()
        service = LeaseService(etcd, broker, gate, Identity(""), Health())
        connection = Connection(service)
        with (
            Monitor() as monitor,
            Monitor() as ear,
            KernelSocket() as kernel,
            StateFile(str(directory), "dataplane") as state,
        ):
            dataplane = Dataplane(
                settings(directory), cast("LeaseConnection", connection), kernel, health, state, clock
            )
            world = World(etcd, connection, dataplane, health, kernel)
            jobs = (
                gate.follow(),
                etcd.expire(),
                dataplane.feed.run(),
                dataplane.holder.run(),
                dataplane.reporter.run(),
                dataplane.run(),
                heal(dataplane, monitor, kernel.port),
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


def test_a_lease_service_that_is_away_for_a_day(netns: NetworkNamespace, tmp_path: Path) -> None:
    """The own lease runs out meanwhile, because nobody renews it: the subnet is asked for again, and free."""

    async def story(world: World) -> None:
        before, own = await world.objects(), world.dataplane.holder.lease
        mac, subnet_env = world.dataplane.footing.devices, (tmp_path / "subnet.env").read_text()
        assert (own is not None, len(before)) == (True, 15)
        world.connection.is_away.set()
        for _ in range(26):
            await asyncio.sleep(HOUR)
            assert await world.objects() == before
            assert world.health.reasons[0] == "the lease service is away"
        assert own is not None
        assert own.name not in world.etcd.leases
        status = status_of(world.dataplane, world.health, 0)
        assert (status.lease.name, status.peers.programmed) == (own.name, 5)
        world.connection.is_away.clear()
        await world.until_ready(60)
        assert world.dataplane.holder.lease is not None
        assert world.dataplane.holder.lease.cidrs == own.cidrs
        assert await world.objects() == before
        assert (world.dataplane.footing.devices, (tmp_path / "subnet.env").read_text()) == (mac, subnet_env)
        assert (world.removed, world.dataplane.journal.repairs.total()) == ([], 0)

    live(netns, tmp_path, story)


def test_a_store_that_is_away_for_a_day(netns: NetworkNamespace, tmp_path: Path) -> None:
    """Of the leases that run out meanwhile none is removed; one that is gone when it is back goes then."""

    async def story(world: World) -> None:
        for number in range(2, 7):
            world.etcd.put(replace(peer(number), expires_at=clock() + DAY))
        await asyncio.sleep(60)
        before, own = await world.objects(), world.dataplane.holder.lease
        world.removed.clear()
        world.etcd.go_away()
        for _ in range(26):
            await asyncio.sleep(HOUR)
            assert await world.objects() == before
            assert world.health.reasons[0] == "etcd is away"
        assert world.dataplane.feed.connected
        assert (world.removed, world.dataplane.journal.repairs.total()) == ([], 0)
        del world.etcd.leases[peer(6).name]
        for lease in list(world.etcd.leases.values()):  # as an etcd does by as long as it was away
            world.etcd.leases[lease.name] = lease.with_time(clock() + DAY)
        world.etcd.come_back()
        await world.until_ready(300)
        await asyncio.sleep(300)  # the holder renews
        assert world.dataplane.holder.lease is not None
        assert own is not None
        assert world.dataplane.holder.lease.cidrs == own.cidrs
        assert await world.objects() < before
        assert (len(await world.objects()), world.dataplane.journal.repairs.total()) == (12, 0)

    live(netns, tmp_path, story)


def test_leases_that_run_out_while_nobody_tells_are_counted_and_kept(netns: NetworkNamespace, tmp_path: Path) -> None:
    async def story(world: World) -> None:
        world.etcd.put(peer(2, expires_at=1_000_000.0))  # by the clock of this machine, which status goes by
        await asyncio.sleep(1)
        world.etcd.go_away()
        await asyncio.sleep(DAY)
        counts = status_of(world.dataplane, world.health, 0).peers
        assert (counts.total, counts.programmed, counts.expired) == (5, 5, 1)

    live(netns, tmp_path, story)


def test_a_reboot_into_an_outage_that_lasts_a_day(netns: NetworkNamespace, tmp_path: Path) -> None:
    """The own lease, which is assumed at the start, runs out in the middle of it: nothing is given up."""
    mac = "9e:11:22:33:44:55"
    part = Subnet(ip_network("10.5.27.0/24"), ip_address("10.99.0.11"), VxlanData(1, mac))
    own = Lease("10.5.27.0-24", "n1", (part,), "vxlan", EPOCH + 12 * HOUR)
    with StateFile(str(tmp_path), "dataplane") as state:
        snapshot = list(snapshot_pieces(SMALL, [peer(number, EPOCH + HOUR) for number in range(2, 7)]))
        state.write(encode("dataplane", "n1", own, own.cidrs, snapshot))

    async def story(world: World) -> None:
        await asyncio.sleep(10)
        before, subnet_env = await world.objects(), (tmp_path / "subnet.env").read_text()
        assert (len(before), "FLANNEL_SUBNET=10.5.27.1/24" in subnet_env) == (15, True)
        for _ in range(26):
            await asyncio.sleep(HOUR)
            assert await world.objects() == before
            status = status_of(world.dataplane, world.health, 0)
            assert (status.ready, list(status.lease.subnets), status.devices[0].mac) == (False, ["10.5.27.0/24"], mac)
        world.connection.is_away.clear()
        await world.until_ready(60)
        assert world.dataplane.holder.lease is not None
        assert world.dataplane.holder.lease.subnets == own.subnets
        assert await world.objects() == before
        assert (tmp_path / "subnet.env").read_text() == subnet_env
        assert (world.removed, world.dataplane.journal.repairs.total()) == ([], 0)

    live(netns, tmp_path, story, is_away=True)
