"""The service of masq as a process on a host, and a real lease service for it."""

import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2_grpc

from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.masq.v1 import masq_pb2_grpc
from tests import process_logs
from tests.hosts.masq import Host
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess
from tests.waiting import eventually

NETWORK: Final = (
    '{"Network":"10.5.0.0/16","SubnetMin":"10.5.27.0","SubnetMax":"10.5.27.0","Backend":{"Type":"host-gw"}}'
)


class Masq:
    """`flannelette-masq` on a host, and its calls."""

    def __init__(self, host: Host, *arguments: str) -> None:
        self.directory = host.lock.parent
        self.log = self.directory / "masq.log"
        program = (sys.executable, "-m", "flannelette.services.masq.main", "--node=n1")
        where = (f"--socket-dir={self.directory}", f"--state-dir={self.directory}/state")
        self.process = process_logs.started(
            [*program, *where, *arguments],
            self.log,
            env=host.environment | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )
        self._channel = grpc.aio.insecure_channel(
            f"unix:{self.directory}/masq.sock", options=[("grpc.max_reconnect_backoff_ms", 100)]
        )
        self.stub = masq_pb2_grpc.MasqServiceStub(self._channel)
        self.health = health_pb2_grpc.HealthStub(self._channel)

    async def status(self) -> pb.Status:
        return (await self.stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=PATIENCE)).status

    async def reasons(self) -> str:
        """Why it is not ready, in one text."""
        return " ".join((await self.status()).reasons)

    async def until(
        self, *, ready: bool = True, repairs: int = 0, fits: Callable[[pb.Status], bool] = lambda _: True
    ) -> pb.Status:
        """The status, as soon as it is like that."""
        return await eventually(
            self.status, lambda status: status.ready is ready and status.repairs >= repairs and fits(status)
        )

    def worker(self) -> int:
        """Its worker's process id; 0 while it has none."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0]) if children else 0

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code, negative for a signal."""
        await self._channel.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)


@asynccontextmanager
async def masq_on(host: Host, *arguments: str) -> AsyncIterator[Masq]:
    masq = Masq(host, *arguments)
    try:
        yield masq
    finally:
        await masq.end(signal.SIGKILL)


def lease_service(host: Host, *more: str) -> ServiceProcess:
    directory = host.lock.parent
    (directory / "net-conf.json").write_text(NETWORK)
    store = (f"--net-config-path={directory}/net-conf.json", f"--store-file={directory}/leases.db")
    return ServiceProcess(directory, *store, *more)


async def acquire(service: ServiceProcess, *more: str) -> None:
    """Acquires the lease of the node with these public addresses, beside that of IPv4."""
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        subnets = [lease_pb2.Subnet(public_address=each) for each in ("192.0.2.1", *more)]
        request = lease_pb2.AcquireLeaseRequest(node="n1", subnets=subnets, backend_type="host-gw")
        await stub.AcquireLease(request, wait_for_ready=True, timeout=PATIENCE)


async def release(service: ServiceProcess) -> None:
    async with grpc.aio.insecure_channel(service.address) as channel:
        stub = lease_pb2_grpc.LeaseServiceStub(channel)
        await stub.ReleaseLease(lease_pb2.ReleaseLeaseRequest(node="n1", name="10.5.27.0-24"), timeout=PATIENCE)
