"""A lease service for tests: in this process over a store that the test plays, or as a process of its own."""

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.errors import NotFound
from flannelette.services.core.family import Network
from flannelette.services.core.ipam import Reclaim
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Progress, Subnet, lease_key
from flannelette.services.core.leases.table import Change, Step
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.admission import GuardSettings, StorePipeline
from flannelette.services.lease.service import SERVICE, Identity, LeaseService, add_to_server
from flannelette.services.lease.stores.store import Changed, Reclaimed, Snapshot, StoreEvent
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.lease.wire import step_from_proto
from flannelette.services.runtime.process.process import Process
from flannelette.services.runtime.process.settings import ProcessSettings
from tests import process_logs
from tests.examples.leases import NETWORK, by_name
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE


def listing(
    leases: Mapping[str, Lease], network: NetworkConfig | None, network_error: str = "", **more: Any
) -> StoreEvent:
    """All that a store holds; `more` is that of a Snapshot."""
    return Snapshot(dict(leases), network, network_error, **more)


def news(*changes: Change, **more: Any) -> StoreEvent:
    """What happens in a store; `more` is that of Changed, such as `refused`."""
    return Changed(changes, **more)


class FakeStore:
    """A store whose watch says what the test tells it, and whose calls raise what the test wants."""

    kind = "fake"

    def __init__(self, *leases: Lease) -> None:
        self.events: asyncio.Queue[StoreEvent] = asyncio.Queue()
        self.leases = by_name(*leases)
        self.fault: Exception | None = None
        self.on_acquire: Callable[[LeaseRequest], Lease] | None = None
        self.released: list[tuple[str, str]] = []
        self.reported: list[Progress] = []
        self.unreserved: list[str] = []
        self.reclaims: list[tuple[dict[str, Any], bool]] = []
        """What each call gave, and whether it was a dry run."""
        self.discarded: list[tuple[str, Lease | str]] = []

    def tells(self, *changes: Change, **more: Any) -> None:
        """This happens in the store, and its watch says so."""
        self.events.put_nowait(news(*changes, **more))

    async def watch(self) -> AsyncIterator[StoreEvent]:
        while True:
            yield await self.events.get()

    async def relist(self) -> Snapshot:
        self._fail()
        return Snapshot(dict(self.leases), NETWORK)

    async def acquire(self, request: LeaseRequest) -> Lease:
        self._fail()
        assert self.on_acquire is not None
        return self.on_acquire(request)

    async def renew(self, node: str, name: str, machine: str = "") -> Lease:
        self._fail()
        if name not in self.leases:
            raise NotFound("acquire again")
        return self.leases[name]

    async def release(self, node: str, name: str) -> None:
        self._fail()
        self.released.append((node, name))

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        self._fail()
        return Lease(lease_key(cidrs), node, tuple(map(Subnet, cidrs)), reserved=True)

    async def unreserve(self, name: str) -> None:
        self._fail()
        self.unreserved.append(name)

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        self._fail()
        given = {each.name: getattr(wanted, each.name) for each in fields(wanted)}
        self.reclaims.append(({name: value for name, value in given.items() if value not in (None, "", ())}, dry_run))
        return tuple(Reclaimed(lease, 1_000_000.0) for lease in self.leases.values())

    async def report(self, progress: Progress) -> float:
        self._fail()
        self.reported.append(progress)
        return 0.0

    async def discard(self, key: str, seen: Lease | str) -> None:
        self._fail()
        self.discarded.append((key, seen))

    async def close(self) -> None:
        """Nothing to free."""

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault


class Running:
    """A running lease service, and a stub to call it."""

    def __init__(self, broker: Broker, gate: StorePipeline, process: Process, address: str) -> None:
        self.broker = broker
        self.gate = gate
        self.process = process
        self.address = address
        self.channel = grpc.aio.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        self.stub = lease_pb2_grpc.LeaseServiceStub(self.channel)

    def tells(self, *changes: Change, **more: Any) -> None:
        """The store has told this: the service has it when this returns."""
        self.gate.take(news(*changes, **more))


@asynccontextmanager
async def serving(
    store: FakeStore,
    socket_dir: Path,
    *,
    node: str = "",
    most_entries: int = 1000,
    snapshot: bool = True,
    guard_seconds: float = 0,
) -> AsyncIterator[Running]:
    """The service over the store, on `lease.sock`; with `snapshot` its first one has been folded."""
    broker = Broker(store.kind, epoch="epoch", most_entries=most_entries)
    process = Process("lease")
    gate = StorePipeline(store, broker, GuardSettings(seconds=guard_seconds))
    service = LeaseService(store, broker, gate, Identity(node), process.health)
    process.servicers[SERVICE] = partial(add_to_server, service)
    process.jobs["store"] = gate.follow
    if snapshot:
        gate.take(Snapshot(store.leases, NETWORK))
    running = Running(broker, gate, process, f"unix:{socket_dir}/lease.sock")
    task = asyncio.create_task(process.run(ProcessSettings(socket_dir=socket_dir)))
    try:
        await asyncio.wait_for(running.channel.channel_ready(), PATIENCE)
        yield running
    finally:
        broker.stop()
        process.stopping.set()
        await asyncio.wait_for(task, PATIENCE)
        await running.channel.close()


async def next_step(call: Any) -> Step:
    """The next step of a WatchLeases call."""
    message = await call.read()
    assert isinstance(message, pb.WatchLeasesResponse), "the stream has ended"
    return step_from_proto(message)


class ServiceProcess:
    """`python -m flannelette.services.lease.main` with these arguments; its log is in `log`."""

    def __init__(
        self,
        directory: Path,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        namespace: NetworkNamespace | None = None,
        around: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.address = f"unix:{directory}/lease.sock"
        self.log = directory / "lease.log"
        command = [
            *around,
            sys.executable,
            "-m",
            "flannelette.services.lease.main",
            f"--socket-dir={directory}",
            *arguments,
        ]
        self._process = process_logs.started(
            command if namespace is None else namespace.command(*command),
            self.log,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, sys.path))} | dict(environment or {}),
        )

    @property
    def is_running(self) -> bool:
        """It has not ended."""
        return self._process.poll() is None

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._process.pid}/fd").iterdir()))

    @contextmanager
    def without_descriptors(self) -> Iterator[None]:
        """It gets no further one meanwhile."""
        before = resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, (1, before[1]))
        try:
            yield
        finally:
            resource.prlimit(self._process.pid, resource.RLIMIT_NOFILE, before)

    @property
    def resident_mib(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) / 1024

    def __enter__(self) -> "ServiceProcess":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.kill()

    def terminate(self) -> int:
        """SIGTERM; returns the exit code."""
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(PATIENCE)

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE)

    def wait(self) -> int:
        """Waits for it to end by itself; returns the exit code."""
        return self._process.wait(PATIENCE)


@asynccontextmanager
async def stub_of(address: str) -> AsyncIterator[lease_pb2_grpc.LeaseServiceStub]:
    """A stub, once the service is there."""
    async with grpc.aio.insecure_channel(address, options=[("grpc.max_reconnect_backoff_ms", 100)]) as channel:
        await asyncio.wait_for(channel.channel_ready(), PATIENCE)
        yield lease_pb2_grpc.LeaseServiceStub(channel)
