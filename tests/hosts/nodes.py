"""Nodes on one etcd, each with a lease service, a dataplane and a pod, all real; and pings between the pods."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from ipaddress import ip_interface
from itertools import combinations
from pathlib import Path
from typing import Final

from lab import topology
from lab.build import carry_out, make_pod
from lab.pings import Pinger
from lab.stream import Path as PingPath
from lab.stream import Stream
from tests.etcd.server import EtcdServer
from tests.hosts.dataplane import Running
from tests.hosts.namespaces import remove_hosts
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess

PREFIX: Final = "/coreos.com/network"
NETWORK: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'


def foreign_key(taken: Collection[str]) -> str:
    """The name of a lease that another program writes beside these, which the nodes have drawn at random."""
    return next(name for number in range(77, 256) if (name := f"10.5.{number}.0-24") not in taken)


class Node:
    """A host, its services and its pod."""

    def __init__(self, number: int, directory: Path, central: Path | None, flags: Sequence[str] = ()) -> None:
        self.host = topology.Host(number)
        self.name = self.host.name
        self.namespace = self.host.namespace
        self.directory = directory
        self.leases: ServiceProcess | None = None
        self._central = central
        self._flags = flags
        self._dataplane: Running | None = None

    def arguments(self, *more: str) -> list[str]:
        """Of the dataplane."""
        return [
            f"--node={self.name}",
            f"--socket-dir={self.directory}",
            f"--lease-address=unix:{self._central or self.directory}/lease.sock",
            f"--subnet-file={self.directory}/subnet.env",
            f"--state-dir={self.directory}/state",
            *self._flags,
            *more,
        ]

    def forward(self) -> None:
        """Makes a router of the host."""
        with self.namespace.inside():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def start_dataplane(self) -> None:
        self._dataplane = Running(self, (), ())

    @property
    def is_started(self) -> bool:
        """Whether it has a dataplane."""
        return self._dataplane is not None

    @property
    def dataplane(self) -> Running:
        """The process that was started last."""
        assert self._dataplane is not None
        return self._dataplane

    async def end(self) -> None:
        """Kills what runs of it."""
        if self.leases is not None:
            self.leases.__exit__(None, None, None)
        if self._dataplane is not None:
            await self._dataplane.end(signal.SIGKILL)
            self._dataplane = None

    @property
    def gateway(self) -> topology.Interface:
        """The first address of its subnet, as subnet.env has it."""
        lines = (self.directory / "subnet.env").read_text().splitlines()
        return ip_interface(dict(line.split("=", 1) for line in lines)["FLANNEL_SUBNET"])

    @property
    def key(self) -> str:
        """The name of its lease."""
        return str(self.gateway.network).replace("/", "-")

    def log(self, service: str) -> str:
        """What `lease` or `dataplane` has logged."""
        return (self.directory / f"{service}.log").read_text()


class Nodes:
    """All of them."""

    def __init__(self, etcd: EtcdServer, home: Path, nodes: list[Node]) -> None:
        self.etcd = etcd
        self.home = home
        self.nodes = nodes
        self.central: ServiceProcess | None = None
        self.subnets: dict[str, str] = {}
        """By node, as they were when the pods were made."""

    def key(self, name: str) -> str:
        """`subnets/...` as etcd has it."""
        return f"{PREFIX}/{name}"

    def get(self, name: str) -> str:
        """The value of a key; empty: there is none."""
        return self.etcd.etcdctl("get", "--print-value-only", self.key(name)).rstrip("\n")

    async def put(self, name: str, value: str) -> None:
        await asyncio.to_thread(self.etcd.etcdctl, "put", self.key(name), value)

    async def delete(self, name: str, *more: str) -> None:
        await asyncio.to_thread(self.etcd.etcdctl, "del", self.key(name), *more)

    def start_leases(self, node: Node) -> None:
        """The lease service of this node."""
        node.leases = self._start(node.directory, f"--node={node.name}")

    def start_central(self) -> None:
        """The lease service of all nodes."""
        self.central = self._start(self.home, "--central")

    def _start(self, directory: Path, whose: str) -> ServiceProcess:
        store = ("--store=etcd", f"--etcd-endpoints={self.etcd.endpoint}")
        return ServiceProcess(directory, *store, whose)

    async def end(self) -> None:
        """Kills what runs of it."""
        for node in self.nodes:
            await node.end()
        if self.central is not None:
            self.central.__exit__(None, None, None)

    async def until_programmed(self) -> None:
        """Every dataplane is ready, and has every other node."""
        for node in self.nodes:
            await node.dataplane.until(peers=len(self.nodes) - 1)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Looks at etcd or at files again and again."""
        async with asyncio.timeout(PATIENCE):
            while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - other processes decide
                await asyncio.sleep(0.05)

    async def until_as_before(self) -> None:
        """Every node is ready and has the subnet that its pods have, with a key that says so."""
        await self.until(
            lambda: set(self.keys("subnets")) == set(self.keys("holders")) == {n.key for n in self.nodes}
        )
        await self.until_programmed()
        assert {node.name: str(node.gateway) for node in self.nodes} == self.subnets

    def keys(self, directory: str) -> list[str]:
        """The names in this directory of etcd."""
        prefix = self.key(f"{directory}/")
        lines = self.etcd.etcdctl("get", "--prefix", "--keys-only", prefix).split()
        return [line.removeprefix(prefix) for line in lines]

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        """100 pings a second from each pod to each of a higher number, and answers back."""
        with ExitStack() as stack:
            pingers = {node.name: stack.enter_context(Pinger(node.host.pod)) for node in self.nodes}
            yield Stream(
                [
                    PingPath(a.name, b.name, pingers[a.name], topology.pod_address(b.gateway))
                    for a, b in combinations(self.nodes, 2)
                ]
            )


@asynccontextmanager
async def cluster_of_nodes(count: int, etcd: EtcdServer, *, central: bool = False) -> AsyncIterator[Nodes]:
    """All of them ready, their pods made. With `central` one lease service serves all of them."""
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))  # short, for the sockets' sake
        nodes = [Node(number, home / f"h{number}", home if central else None) for number in range(1, count + 1)]
        hosts = tuple(node.host for node in nodes)
        stack.callback(remove_hosts, hosts)
        await carry_out(topology.underlay(hosts))
        etcd.etcdctl("put", f"{PREFIX}/config", NETWORK)
        made = Nodes(etcd, home, nodes)
        stack.push_async_callback(made.end)
        if central:
            made.start_central()
        for node in nodes:
            node.directory.mkdir()
            node.forward()
            if not central:
                made.start_leases(node)
            node.start_dataplane()
        await made.until_programmed()
        await asyncio.gather(*(make_pod(node.host, [node.gateway], 1450) for node in nodes))
        made.subnets = {node.name: str(node.gateway) for node in nodes}
        yield made
