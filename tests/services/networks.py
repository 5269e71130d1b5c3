"""Two networks, blue and red, on two hosts, which have a dataplane and a masq for each."""

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any, Final

import grpc.aio

from flannelette.dataplane.v1 import dataplane_pb2, dataplane_pb2_grpc
from flannelette.masq.v1 import masq_pb2, masq_pb2_grpc
from flannelette.services.runtime.networks import suffix_of
from lab.directory import end_proxies
from lab.pings import Pinger
from lab.stream import Path as PingPath
from lab.stream import Stream
from tests import process_logs
from tests.hosts.dataplane import environment
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess
from tests.waiting import eventually

CONFIGURATIONS: Final = {
    "blue": '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}',
    "red": '{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan","VNI":2}}',
}
_STUBS: Final = {
    "dataplane": dataplane_pb2_grpc.DataplaneServiceStub,
    "masq": masq_pb2_grpc.MasqServiceStub,
}
_MESSAGES: Final = {"dataplane": dataplane_pb2, "masq": masq_pb2}
_WIREGUARD: Final = ("public-key", "listen-port", "endpoints", "allowed-ips")
_COUNTERS: Final = re.compile(r"\[\d+:\d+\]|counter packets \d+ bytes \d+")


class Service:
    """A dataplane or a masq of a network on a host, as a process that can be started again."""

    def __init__(self, host: "Host", kind: str, network: str, *flags: str, program: Sequence[str] = ()) -> None:
        self.kind = kind
        self.log = host.directory / f"{kind}-{network}.log"
        self.address = f"unix:{host.directory}/{kind}{suffix_of(network)}.sock"
        served = [f"--network={network}", f"--lease-address=unix:{host.home}/{network}/lease.sock"] if network else []
        where = [f"--node={host.name}", f"--socket-dir={host.directory}", f"--state-dir={host.directory}/state"]
        program = program or (sys.executable, "-m", f"flannelette.services.{kind}.main")
        self._command = host.namespace.command(*program, *where, *served, *flags)
        self._environment = environment() | {
            "XTABLES_LOCKFILE": f"{host.directory}/xtables.lock",
            "WIREGUARD_KEY_FILE": f"{host.directory}/wgkey",
        }
        self.start()

    def start(self) -> None:
        self.process = process_logs.started(self._command, self.log, env=self._environment)

    def end(self, number: int = signal.SIGKILL) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    async def call(self, method: str, network: str = "", **fields: Any) -> Any:
        """The answer of a call."""
        request = getattr(_MESSAGES[self.kind], f"{method}Request")(network=network, **fields)
        async with grpc.aio.insecure_channel(self.address) as channel:
            call = getattr(_STUBS[self.kind](channel), method)
            return await call(request, wait_for_ready=True, timeout=PATIENCE)

    async def until(self, fits: Callable[[Any], bool]) -> Any:
        """The status, as soon as it is like that."""
        answer = await eventually(lambda: self.call("GetStatus"), lambda answer: fits(answer.status))
        return answer.status

    async def until_in_force(self) -> None:
        """Its peer is programmed, or its rules are there."""
        if self.kind == "masq":
            await self.until(lambda status: status.rules_present == status.rules > 0)
        else:
            await self.until(lambda status: status.ready and status.peers.programmed == 1)


class Host:
    """One of the two hosts."""

    def __init__(self, number: int, namespace: NetworkNamespace, home: Path) -> None:
        self.name = f"n{number}"
        self.namespace = namespace
        self.home = home
        self.directory = home / self.name
        self.directory.mkdir()
        self.services: list[Service] = []

    def serve(self, kind: str, network: str, flags: Sequence[str] = ()) -> Service:
        service = Service(self, kind, network, *self.flags(kind), *flags)
        self.services.append(service)
        return service

    def flags(self, kind: str) -> list[str]:
        """What a service of this host needs, of whichever network."""
        return (
            ["--ip-masq", "--iptables-resync=1"] if kind == "masq" else [f"--subnet-file={self.directory}/subnet.env"]
        )

    def flannelette(self, *words: str) -> str:
        """What the command line prints here."""
        program = (sys.executable, "-m", "flannelette.services.ctl.main", f"--socket-dir={self.directory}")
        done = subprocess.run([*program, *words], env=environment(), capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def end(self) -> None:
        """Kills what runs of it."""
        for service in self.services:
            service.end()

    def objects(self, device: str, net: str) -> str:
        """What the kernel has of a network: device, addresses, routes, neighbours, FDB, rules, WireGuard's keys."""
        looks = ("-d link show", "address show", "neigh show nud permanent", "route show")
        is_there = f"{device}:" in self.namespace.ip("-o", "link")
        found = [self.namespace.ip(*look.split(), "dev", device) for look in looks if is_there]
        found += [] if not is_there else self.namespace.run("bridge", "fdb", "show", "dev", device).splitlines()
        found += [line for line in self.rules() if f" {net}." in line]
        if device.startswith("fl-wg"):
            found += [self.namespace.run("wg", "show", device, what) for what in _WIREGUARD if is_there]
        return _COUNTERS.sub("", "\n".join(found))

    def rules(self) -> list[str]:
        """Of iptables-nft, without counters."""
        return [line for line in self.namespace.run("iptables-nft-save").splitlines() if line.startswith("-A")]

    def address(self, network: str) -> Any:
        """Of the overlay's device, by the subnet file."""
        lines = (self.directory / f"subnet-{network}.env").read_text().splitlines()
        return ip_address(ip_interface(dict(line.split("=") for line in lines)["FLANNEL_SUBNET"]).network[0])


class TwoNetworks:
    """Both hosts, and a lease service for each network."""

    def __init__(self, n1: Host, n2: Host, stack: AsyncExitStack) -> None:
        self.n1, self.n2 = n1, n2
        self._stack = stack

    def add(self, name: str, configuration: str) -> None:
        """A lease service of another network, for all nodes."""
        directory = self.n1.home / name
        directory.mkdir()
        (directory / "net-conf.json").write_text(configuration)
        where = (f"--net-config-path={directory}/net-conf.json", "--store-file=memory")
        self._stack.enter_context(ServiceProcess(directory, *where))

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        """100 pings a second in each network, from n1 to n2."""
        with ExitStack() as stack:
            paths = [
                PingPath("n1", "n2", stack.enter_context(Pinger(self.n1.namespace)), self.n2.address(name))
                for name in CONFIGURATIONS
            ]
            yield Stream(paths)


@asynccontextmanager
async def two_networks(
    make_netns: NamespaceMaker, configurations: Mapping[str, str] = CONFIGURATIONS
) -> AsyncIterator[TwoNetworks]:
    """The hosts and the lease services run; nothing else does."""
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
        stack.callback(end_proxies, home)
        one, two = make_netns(), make_netns()
        make_netns.connect(one, "10.99.0.11/16", two, "10.99.0.12/16")
        for host in (one, two):
            host.ip("route", "add", "default", "via", "10.99.0.1")
        made = TwoNetworks(Host(1, one, home), Host(2, two, home), stack)
        for name, configuration in configurations.items():
            made.add(name, configuration)
        for each in (made.n1, made.n2):
            stack.callback(each.end)
        yield made
