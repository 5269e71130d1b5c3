"""A host whose dataplane is a process of its own, beside a lease service process; and what the tools say of it."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import grpc.aio

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1 import dataplane_pb2_grpc
from flannelette.lease.v1 import lease_pb2, lease_pb2_grpc
from tests import process_logs
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess
from tests.waiting import eventually

VXLAN: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
HOST_GW: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}'
STABLE: Final = "ea:1c:bd:03:3e:64"
MODULE: Final = ("-m", "flannelette.services.dataplane.main")


class Cluster:
    """A lease service, and a network namespace whose eth0 is 10.99.0.11/16 as in the captures."""

    def __init__(self, namespace: NetworkNamespace, directory: Path, network: str) -> None:
        self.namespace = namespace
        self.directory = directory
        self.network_file = directory / "net-conf.json"
        self.network_file.write_text(network)
        namespace.ip("link", "add", "eth0", "type", "veth", "peer", "far")
        for name in ("eth0", "far"):
            namespace.ip("link", "set", name, "up")
        namespace.ip("address", "add", "10.99.0.11/16", "dev", "eth0")
        namespace.ip("route", "add", "default", "via", "10.99.0.1")
        self.leases = self.start_leases()

    def start_leases(self) -> ServiceProcess:
        arguments = (f"--net-config-path={self.network_file}", f"--store-file={self.directory}/leases.db")
        return ServiceProcess(self.directory, *arguments)

    def ip(self, line: str) -> str:
        """What `ip` prints, stripped."""
        return self.namespace.ip(*line.split()).strip()

    def run(self, line: str) -> str:
        """What another command prints inside, stripped."""
        return self.namespace.run(*line.split()).strip()

    def routes(self) -> list[str]:
        """The routes inside the network, single-spaced and sorted."""
        lines = self.ip("route show root 10.5.0.0/16").splitlines()
        return sorted(" ".join(line.split()) for line in lines)

    def neighbours(self) -> list[str]:
        """The permanent ones of flannel.1."""
        return sorted(
            " ".join(line.split()) for line in self.ip("neigh show dev flannel.1 nud permanent").splitlines()
        )

    def fdb(self, device: str = "flannel.1") -> list[str]:
        return sorted(line.strip() for line in self.run(f"bridge fdb show dev {device}").splitlines())

    def everything(self, details: str = "-d") -> list[Any]:
        """Everything that a restart must not change, by the tools' JSON."""
        commands = [
            f"ip {details} -j link show",
            f"ip {details} -j addr show",
            f"ip {details} -j route show table all",
            f"ip {details} -j neigh show nud permanent",
            f"bridge {details} -j fdb show",
        ]
        return [json.loads(self.run(command)) for command in commands]

    async def quiet(self) -> None:
        """Until the kernel has done what a new device makes it do by itself: nothing changes any more.

        Not in detail, for those of a bridge are running timers.
        """
        before: list[Any] = []
        async with asyncio.timeout(PATIENCE):
            while (now := self.everything(details="")) != before or "tentative" in str(now):
                before = now
                await asyncio.sleep(0.3)

    @asynccontextmanager
    async def calls(self) -> AsyncIterator[lease_pb2_grpc.LeaseServiceStub]:
        async with grpc.aio.insecure_channel(self.leases.address) as channel:
            await asyncio.wait_for(channel.channel_ready(), PATIENCE)
            yield lease_pb2_grpc.LeaseServiceStub(channel)

    async def renumber(self, running: "Running", node: str = "n1") -> None:
        """An operator lets the node move, once its dataplane says that a change is pending."""
        await eventually(running.status, lambda status: status.pending)
        async with self.calls() as stub:
            await stub.RenumberNode(lease_pb2.RenumberNodeRequest(node=node))

    async def pending(self) -> None:
        """Until the lease service knows of a network change that takes a lease away."""
        async with self.calls() as stub:
            await eventually(
                lambda: stub.GetStatus(lease_pb2.GetStatusRequest()), lambda status: status.pending_moves
            )

    async def join(self, node: str, public: str, mac: str = "", subnet: str = "") -> str:
        """Another node takes a lease; the name of that."""
        part = lease_pb2.Subnet(cidr=subnet, public_address=public)
        if mac:
            part.vxlan.vni, part.vxlan.mac = 1, mac
        request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[part], backend_type="vxlan" if mac else "host-gw")
        async with self.calls() as stub:
            name: str = (await stub.AcquireLease(request, timeout=PATIENCE)).lease.name
            return name

    async def leave(self, node: str, name: str) -> None:
        async with self.calls() as stub:
            await stub.ReleaseLease(lease_pb2.ReleaseLeaseRequest(node=node, name=name), timeout=PATIENCE)

    @asynccontextmanager
    async def dataplane(self, *arguments: str, around: tuple[str, ...] = ()) -> "AsyncIterator[Running]":
        subnet_file = self.directory / "subnet.env"
        if not subnet_file.exists():  # else chance could give it the subnet that a test wants for a peer
            ipv6 = f"FLANNEL_IPV6_SUBNET={OWN_SUBNET_V6}\n" if "IPv6Network" in self.network_file.read_text() else ""
            subnet_file.write_text(f"FLANNEL_SUBNET={OWN_SUBNET}\n{ipv6}")
        running = Running(self, arguments, around)
        try:
            yield running
        finally:
            await running.end(signal.SIGKILL)

    def try_to_run(self, *arguments: str, around: tuple[str, ...] = (), seconds: float = PATIENCE) -> tuple[int, str]:
        """Exit code and error output of a dataplane that cannot stay."""
        done = subprocess.run(
            self.namespace.command(*around, sys.executable, *MODULE, *self.arguments(*arguments)),
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
        )
        return done.returncode, done.stderr

    def arguments(self, *more: str) -> list[str]:
        return [
            "--node=n1",
            f"--socket-dir={self.directory}",
            f"--subnet-file={self.directory}/subnet.env",
            f"--state-dir={self.directory}/state",
            "--probe-rate=0",  # most peers are leases without a host
            *more,
        ]


OWN_SUBNET, OWN_SUBNET_V6 = "10.5.27.1/24", "fd00:10:5:1b::1/64"


class Place(Protocol):
    """Where a dataplane runs."""

    namespace: NetworkNamespace
    directory: Path

    def arguments(self, *more: str) -> list[str]:
        """Of its command line."""


class Running:
    """A dataplane process and its calls."""

    def __init__(self, cluster: Place, arguments: tuple[str, ...], around: tuple[str, ...]) -> None:
        self.cluster = cluster
        self.log_file = cluster.directory / "dataplane.log"
        self.process = process_logs.started(
            cluster.namespace.command(*around, sys.executable, *MODULE, *cluster.arguments(*arguments)),
            self.log_file,
            env=environment() | {"WIREGUARD_KEY_FILE": f"{cluster.directory}/wgkey"},
        )
        self._channel = grpc.aio.insecure_channel(
            f"unix:{cluster.directory}/dataplane.sock",
            options=[("grpc.max_reconnect_backoff_ms", 100), ("grpc.initial_reconnect_backoff_ms", 50)],
        )
        self.stub = dataplane_pb2_grpc.DataplaneServiceStub(self._channel)
        self.past_repairs: dict[str, int] = {}
        """By cause, of tests before this one."""
        self._past_log, self._past, self._epoch = 0, "", ""

    @property
    def log(self) -> str:
        return self.log_file.read_text()[self._past_log :]

    async def forget_past(self) -> None:
        """Log, events and repairs begin anew, for a test that is not the first one.

        What the test before did last is compared by then, so that no repair of this one has its cause.
        """
        compared = None
        while compared != (compared := (await self.status()).last_resync_time):  # noqa: ASYNC110 - another process compares
            await asyncio.sleep(0.2)
        self.past_repairs, self._past_log, self._past = {}, 0, ""
        self.past_repairs, self._past_log = await self.repairs(), len(self.log)
        self._past = (await self.events())[-1].position

    async def status(self) -> pb.Status:
        call = self.stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=PATIENCE)
        return (await call).status

    async def reasons(self) -> str:
        """Why it is not ready, in one text."""
        return " ".join((await self.status()).reasons)

    async def until(
        self,
        *,
        ready: bool = True,
        peers: int | None = None,
        because: str = "",
        within: float = PATIENCE,
        **more: Any,
    ) -> pb.Status:
        """The status as soon as it is like that, and its reasons have these words."""

        def fits(status: pb.Status) -> bool:
            return (
                status.ready is ready
                and peers in (None, status.peers.programmed)
                and because in " ".join(status.reasons)
                and all(getattr(status, name) == value for name, value in more.items())
            )

        return await eventually(self.status, fits, within)

    async def peers(self) -> list[pb.Peer]:
        return list((await self.stub.ListPeers(pb.ListPeersRequest())).peers)

    async def events(self, **request: Any) -> list[pb.WatchEventsResponse]:
        """What the journal has of this process, as asked for."""
        if not self._epoch:
            *_, start = await self.all_events(kinds=[pb.EVENT_KIND_SERVICE_STARTED])
            self._epoch = start.position.partition(":")[0]
        events = await self.all_events(**request)
        return [event for event in events if event.position.startswith(f"{self._epoch}:")]

    async def all_events(self, **request: Any) -> list[pb.WatchEventsResponse]:
        """What the journal has, also of the processes before in the same directory."""
        wanted = pb.WatchEventsRequest(no_follow=True, **{"after": self._past, **request})
        call = self.stub.WatchEvents(wanted, timeout=PATIENCE)
        return [event async for event in call]

    async def quiet(self) -> None:
        """Until it has nothing left to look at: it rests for five times what a comparison took, and no longer."""
        before: pb.WatchEventsResponse | None = None
        async with asyncio.timeout(PATIENCE):
            while (
                last := (await self.events(after="", kinds=[pb.EVENT_KIND_RESYNC, pb.EVENT_KIND_REPAIR]))[-1]
            ) != before:
                before = last
                await asyncio.sleep(max(0.3, 6e-6 * last.microseconds))

    async def repairs(self) -> dict[str, int]:
        """Objects put right, by cause."""
        status = await self.status()
        assert status.repairs == sum(each.objects for each in status.repairs_by_cause)
        prefix = "REPAIR_CAUSE_"
        found = Counter(
            {pb.RepairCause.Name(c.cause).removeprefix(prefix): c.objects for c in status.repairs_by_cause}
        )
        return dict(found - Counter(self.past_repairs))

    async def resync(self, *, dry_run: bool = False) -> pb.ResyncKernelResponse:
        return await self.stub.ResyncKernel(pb.ResyncKernelRequest(dry_run=dry_run), timeout=PATIENCE)

    async def teardown(self) -> pb.TeardownKernelResponse:
        return await self.stub.TeardownKernel(pb.TeardownKernelRequest(), timeout=PATIENCE)

    async def hand_over(self, *, dry_run: bool = False) -> list[str]:
        """The commands."""
        response = await self.stub.HandOver(pb.HandOverRequest(dry_run=dry_run), timeout=PATIENCE)
        assert not response.errors
        return list(response.commands)

    async def end(self, number: int = signal.SIGTERM) -> int:
        """Its exit code, negative for a signal."""
        await self._channel.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, PATIENCE)


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


C = TypeVar("C", bound=Cluster)


@contextmanager
def cluster_of(kind: type[C], namespace: NetworkNamespace, network: str = VXLAN) -> Iterator[C]:
    with tempfile.TemporaryDirectory(prefix="fl-") as directory:  # short, for the sockets' sake
        cluster = kind(namespace, Path(directory), network)
        try:
            yield cluster
        finally:
            cluster.leases.__exit__(None, None, None)


def cluster_in(namespace: NetworkNamespace, network: str = VXLAN) -> AbstractContextManager[Cluster]:
    return cluster_of(Cluster, namespace, network)
