"""Many nodes that ask for a lease at once, from an etcd that holds thousands already.

All calls start together, spread over the lease services; counted is the time of each until its answer. Afterwards
etcd is listed: a node without exactly one lease, or a subnet that is given twice, is lost. The peer is the naive
way, on the same service with the same clients in the same run: all leases are listed for each acquisition, as
flanneld does.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import grpc.aio

from bench.result import Bench, BenchFailed, Result
from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.leases.flannel_json import format_value
from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData, lease_key
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.prefix import Keyspace, format_holder, holder_of, parse_holder
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.values import Put, Transaction
from lab.programs import NoEtcd, find_etcd

_ENDPOINT: Final = "http://127.0.0.1:2379"
"""Address of etcd, in a network namespace of our own."""
_KEYS: Final = Keyspace("/coreos.com/network")
_NETWORK: Final = IPv4Network("10.0.0.0/8")
_CONFIG: Final = b'{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}'
_DAY: Final = 86_400
_PATIENCE: Final = 300.0
_CLOCK_TICKS: Final = 100
"""USER_HZ, which is 100 on every Linux."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What one contender did."""

    seconds: float
    """Seconds until all nodes had a lease."""
    milliseconds: Sequence[float]
    """Duration of each call, sorted."""
    lost: int
    cpu_seconds: float
    """CPU of its services, from the first call to the last answer."""

    def percentile(self, share: float) -> float:
        """Returns a percentile in milliseconds."""
        return self.milliseconds[min(int(len(self.milliseconds) * share), len(self.milliseconds) - 1)]


@contextmanager
def _started(log: Path, *command: str) -> "Iterator[subprocess.Popen[bytes]]":
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _etcd_command(directory: Path) -> tuple[str, ...]:
    return (
        find_etcd(),
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={_ENDPOINT}",
        f"--advertise-client-urls={_ENDPOINT}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # the disk would be the same for all contenders
        "--log-level=error",
    )


async def _preload(client: EtcdClient, leases: int) -> None:
    """Nodes that hold a lease each, as our services write them."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            await client.grant(1, _DAY)
            break
        except Exception:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.1)
    await client.transact(Transaction((), (Put(_KEYS.config, _CONFIG),)))
    for start in range(0, leases, 50):
        held = (_lease(number) for number in range(start, min(start + 50, leases)))
        puts = (
            put
            for lease in held
            for put in (
                Put(_KEYS.subnet(lease.name), format_value(lease).encode(), 1),
                Put(_KEYS.holder(lease.name), format_holder(holder_of(lease)), 1),
            )
        )
        await client.transact(Transaction((), tuple(puts)))


def _lease(number: int) -> Lease:
    cidr = IPv4Network((int(_NETWORK.network_address) + ((number + 1) << 8), 24))
    data = VxlanData(1, ((2 << 40) + number).to_bytes(6).hex(":"))
    return Lease(
        lease_key([cidr]), f"old-{number}", (Subnet(cidr, IPv4Address("172.16.0.1") + number, data),), "vxlan"
    )


async def _measure(module: str, directory: Path, leases: int, parallel: int, services: int) -> Measured:
    with ExitStack() as processes:
        processes.enter_context(_started(directory / "etcd.log", *_etcd_command(directory)))
        client = EtcdClient(EtcdSettings((_ENDPOINT,), "/coreos.com/network"), Timing(), "bench")
        await _preload(client, leases)
        homes = [directory / f"service-{number}" for number in range(services)]
        running = [
            processes.enter_context(_started(directory / f"{home.name}.log", *_service_command(module, home)))
            for home in homes
        ]
        async with AsyncExitStack() as channels:
            stubs = [await _stub(channels, home, leases) for home in homes]
            cpu, began = _cpu_seconds(running), time.monotonic()
            times = await asyncio.gather(*(_acquire(stubs[n % services], n, began) for n in range(parallel)))
            seconds, cpu = time.monotonic() - began, _cpu_seconds(running) - cpu
        lost = await _lost(client, leases, parallel)
        await client.close()
        return Measured(seconds, sorted(1000 * each for each in times), lost, cpu)


def _service_command(module: str, home: Path) -> tuple[str, ...]:
    home.mkdir()
    return (
        *(sys.executable, "-m", module, "--store=etcd", "--central"),
        *(f"--etcd-endpoints={_ENDPOINT}", f"--socket-dir={home}"),
    )


async def _stub(channels: AsyncExitStack, home: Path, leases: int) -> Any:
    """A stub of a service that has the whole table."""
    channel = await channels.enter_async_context(grpc.aio.insecure_channel(f"unix:{home}/lease.sock"))
    await asyncio.wait_for(channel.channel_ready(), _PATIENCE)
    stub: Any = lease_pb2_grpc.LeaseServiceStub(channel)
    async with asyncio.timeout(_PATIENCE):
        while (await stub.GetStatus(pb.GetStatusRequest())).leases != leases:  # noqa: ASYNC110 - another process
            await asyncio.sleep(0.05)
    return stub


async def _acquire(stub: Any, number: int, began: float) -> float:
    """Seconds from the common start to the answer."""
    subnet = pb.Subnet(public_address=str(IPv4Address("172.24.0.1") + number))
    subnet.vxlan.vni, subnet.vxlan.mac = 1, ((6 << 40) + number).to_bytes(6).hex(":")
    request = pb.AcquireLeaseRequest(node=f"new-{number}", backend_type="vxlan", subnets=[subnet])
    try:
        await stub.AcquireLease(request, timeout=_PATIENCE)
    except grpc.aio.AioRpcError as error:
        raise BenchFailed(f"a node got no lease: {error.details()}") from None
    return time.monotonic() - began


async def _lost(client: EtcdClient, leases: int, parallel: int) -> int:
    """How many of the new nodes have not exactly one lease."""
    items = [item async for page in client.pages(_KEYS.root) for item in page.items]
    subnets = {item.key.removeprefix(_KEYS.subnets) for item in items if item.key.startswith(_KEYS.subnets)}
    cidrs = sorted(IPv4Network(name.decode().replace("-", "/")) for name in subnets)
    overlaps = sum(a.overlaps(b) for a, b in pairwise(cidrs))
    new = [cidr for cidr in cidrs if int(cidr.network_address) > int(_NETWORK.network_address) + (leases << 8)]
    held = Counter(
        parse_holder(item.key.removeprefix(_KEYS.holders).decode(), item.value).node
        for item in items
        if item.key.startswith(_KEYS.holders)
    )
    doubled = sum(count > 1 for count in held.values())
    return parallel - len(new) + overlaps + doubled


def _cpu_seconds(running: "Sequence[subprocess.Popen[bytes]]") -> float:
    fields = [Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split() for process in running]
    return sum(int(each[11]) + int(each[12]) for each in fields) / _CLOCK_TICKS


def _run(parameters: Mapping[str, int]) -> Result:
    sizes = (parameters["leases"], parameters["parallel"], parameters["services"])
    measured = []
    for module in ("flannelette.services.lease.main", "bench.acquire_naive"):
        with tempfile.TemporaryDirectory() as directory:
            try:
                measured.append(asyncio.run(_measure(module, Path(directory), *sizes)))
            except NoEtcd as error:
                raise BenchFailed(str(error)) from None
    ours, naive = measured
    return Result(
        name="acquire",
        parameters=parameters,
        unit="seconds until all nodes have a lease",
        ours=ours.seconds,
        peers={"all leases listed for each acquisition": naive.seconds},
        less_is_better=True,
        cpu_seconds=ours.cpu_seconds,
        figures={
            "p50_ms": ours.percentile(0.5),
            "p99_ms": ours.percentile(0.99),
            "lost": ours.lost,
            "peer_p50_ms": naive.percentile(0.5),
            "peer_p99_ms": naive.percentile(0.99),
            "peer_cpu_seconds": naive.cpu_seconds,
        },
    )


ACQUIRE: Final = Bench(
    name="acquire",
    summary="N nodes that ask etcd for a lease at once, beside a listing for each of them",
    parameters={"parallel": 200, "leases": 10_000, "services": 1},
    run=_run,
)
