"""Two whole nodes, on which the way of a packet is traced: dataplane, masq and a pod on each, one lease service."""

import asyncio
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.ctl.connect.contexts import Nodes, Place
from lab.netns import NetworkNamespace
from lab.pings import Pinger
from tests import process_logs
from tests.faults.silent_scene import pod_address
from tests.hosts.dataplane import Running, environment
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.two_hosts import Row, network, rows_of, subnet_env
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess

_MASQ: Final = ("-m", "flannelette.services.masq.main", "--ip-masq", "--firewall=nftables", "--iptables-resync=600")


class Node:
    """n1 or n2; the place of its dataplane."""

    def __init__(self, name: str, home: Path, rows: list[Row], make_netns: NamespaceMaker) -> None:
        self.name = name
        self.rows = rows
        self.home = home
        self.directory = home / name
        self.directory.mkdir()
        self.namespace, self.pod = make_netns(), make_netns()
        (self.directory / "subnet.env").write_text(subnet_env(rows))

    def arguments(self, *more: str) -> list[str]:
        """Of either service."""
        return [
            f"--node={self.name}",
            f"--socket-dir={self.directory}",
            f"--lease-address=unix:{self.home}/lease.sock",
            f"--state-dir={self.directory}/state",
            *more,
        ]

    def connect(self, routers: list[Row]) -> None:
        """Its addresses in the underlay, its bridge and its pod; the other node is its router."""
        self.namespace.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
        for line in (
            "link set eth0 up",
            *(f"addr add {row.public}/{16 if row.version == 4 else 64} dev eth0" for row in self.rows),
            "link add cni0 type bridge",
            "link set cni0 up",
            f"link add veth0 type veth peer name eth0 netns {self.pod.name}",
            "link set veth0 master cni0 up",
            *(f"addr add {row.gateway}/{row.length} dev cni0" for row in self.rows),
        ):
            self.namespace.ip(*line.split())
        self.pod.ip(*"link set eth0 up".split())
        for row, router in zip(self.rows, routers, strict=True):
            self.namespace.ip(f"-{row.version}", *f"route add default via {router.public}".split())
            self.pod.ip("addr", "add", f"{pod_address(row)}/{row.length}", "dev", "eth0")
            self.pod.ip(f"-{row.version}", *f"route add default via {row.gateway}".split())

    async def types(self, line: str) -> None:
        """Types a command there."""
        await asyncio.to_thread(self.namespace.run, "sh", "-c", line)

    def start_masq(self) -> "subprocess.Popen[bytes]":
        command = self.namespace.command(sys.executable, *_MASQ, *self.arguments())
        return process_logs.started(command, self.directory / "masq.log", env=environment())


class Pair:
    """Both."""

    def __init__(self, home: Path, nodes: list[Node], running: list[Running]) -> None:
        self.home = home
        self.nodes = nodes
        self.running = running
        self.n1, self.n2 = nodes

    async def flannelette(self, *words: str, on: str = "") -> tuple[int, str]:
        """Exit code and output of the command line, which reaches both nodes, or one of them."""
        where = (f"--socket-dir={self.home / on}",) if on else ("--context=pair",)
        line = (sys.executable, "-m", "flannelette.services.ctl.main", *where, *words)
        contexts = {"FLANNELETTE_CONTEXTS": str(self.home / "contexts.toml")}
        run = partial(subprocess.run, env=environment() | contexts, capture_output=True, text=True, check=False)
        done = await asyncio.to_thread(run, line, timeout=PATIENCE)
        return done.returncode, done.stdout + done.stderr

    def targets(self) -> Nodes:
        """Where the services of both listen."""
        return {node.name: Place(socket_dir=str(node.directory)).targets() for node in self.nodes}

    async def ask(self, on: int, source: str, destination: str) -> pb.TracePacketResponse:
        """What one node says of a packet."""
        request = pb.TracePacketRequest(source=source, destination=destination)
        return await self.running[on].stub.TracePacket(request, timeout=PATIENCE)

    async def flows(self, version: int = 4) -> bool:
        """Whether a ping of n1's pod to n2's is answered within a tenth of a second."""
        (row,) = (each for each in self.n2.rows if each.version == version)
        return await self.answers(self.n1.pod, pod_address(row))

    async def answers(self, namespace: NetworkNamespace, address: str) -> bool:
        """Whether a ping from there is answered within a tenth of a second."""
        target = ip_address(address)
        with Pinger(namespace, target.version) as pinger:
            return (await pinger.ping(target, 0.1))[1] is not None


def words(scene: Pair) -> dict[str, str]:
    """What stands in braces in `traced_rows`."""
    found: dict[str, str] = {}
    for node in scene.nodes:
        for row in node.rows:
            mark = node.name if row.version == 4 else f"{node.name}_6"
            link = json.loads(node.namespace.ip("-j", "link", "show", row.device))[0]
            found |= {mark: row.cidr, f"{mark}_vtep": row.subnet, f"{mark}_mac": link["address"]}
            found[f"{mark}_gateway"] = f"{row.gateway}/{row.length}"
    return found


def state_of(scene: Pair) -> list[list[str]]:
    """What a test in whose scene others follow has to leave as it was, without what IPv6 does by itself."""
    commands = (
        "ip route show table all",
        "ip -6 route show table all",
        "ip rule show",
        "ip -br link show",
        "ip -br addr show",
        "ip neigh show nud permanent",
        "bridge fdb show",
        "nft list tables",
    )
    shown = [node.namespace.run(*command.split()).splitlines() for node in scene.nodes for command in commands]
    return [sorted(line for line in some if "fe80:" not in line and "33:33:" not in line) for some in shown]


@asynccontextmanager
async def paused_pair(_: None) -> AsyncIterator[Pair]:
    """Both are handed over to flanneld, so that nobody repairs anything."""
    async with pair("vxlan", "dual") as scene:
        for each in scene.running:
            await each.hand_over()
        yield scene


@asynccontextmanager
async def probed_pair(_: None) -> AsyncIterator[Pair]:
    """Both repair what is theirs, and probe each other."""
    async with pair("vxlan", "dual", probe_rate=50) as scene:
        yield scene


@asynccontextmanager
async def pair(
    backend: str, families: str = "ipv4", configuration: str = "", probe_rate: int = 0
) -> AsyncIterator[Pair]:
    """Both are ready, and packets flow between the pods."""
    make_netns = NamespaceMaker()
    async with AsyncExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fl-")))
        (home / "net-conf.json").write_text(configuration or network(backend, families))
        stack.callback(make_netns.close)
        nodes = [Node(f"n{i + 1}", home, rows, make_netns) for i, rows in enumerate(rows_of(backend, families))]
        far = nodes[1].namespace.name
        nodes[0].namespace.ip(*f"link add eth0 type veth peer name eth0 netns {far}".split())
        for node, other in zip(nodes, reversed(nodes), strict=True):
            node.connect(other.rows)
        leases = ServiceProcess(home, f"--net-config-path={home}/net-conf.json", f"--store-file={home}/leases.db")
        stack.callback(leases.__exit__, None, None, None)
        running = []
        for node in nodes:
            masq = node.start_masq()
            stack.callback(masq.wait, PATIENCE)
            stack.callback(masq.send_signal, signal.SIGTERM)
            more = (f"--subnet-file={node.directory}/subnet.env", "--ip-masq", f"--probe-rate={probe_rate}")
            running.append(Running(node, (*more, "--audit-interval=600"), ()))
            stack.push_async_callback(running[-1].end, signal.SIGKILL)
        lines = (f'[pair.nodes.{node.name}]\nsocket_dir = "{node.directory}"\n' for node in nodes)
        (home / "contexts.toml").write_text("".join(lines))
        made = Pair(home, nodes, running)
        for each in running:
            await each.until(peers=1)
        async with asyncio.timeout(PATIENCE):
            for row in nodes[0].rows:
                while not await made.flows(row.version):
                    pass
        yield made
