"""Two hosts with a pod each, and packets between the pods: where silent faults are put to the test."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import partial
from ipaddress import ip_address
from typing import NamedTuple

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.masq.v1 import masq_pb2
from lab.pings import Pinger
from lab.stream import Path, Stream
from tests.hosts.dataplane import Running, environment
from tests.hosts.masq import entered
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.reboots import restarted
from tests.hosts.two_hosts import Row, TwoHosts, two_hosts
from tests.patience import PATIENCE
from tests.services.masq import Masq, masq_on
from tests.waiting import eventually

FAR = {"10.99.0.12": "10.98.0.12", "fd00:99::12": "fd00:98::12"}
"""The addresses of n2 behind a gateway."""


def pod_address(row: Row, number: int = 2) -> str:
    """A pod's in the subnet of a host."""
    return f"{row.gateway[:-1]}{number}"


class Kind(NamedTuple):
    """Of a scene."""

    backend: str = "vxlan"
    families: str = "dual"
    is_far: bool = False
    """n2 is behind a gateway, 10.99.0.1."""
    has_masq: bool = False
    """n1 has a masq too, whose rules are in nftables."""
    is_probed: bool = False
    """n1 probes n2."""


class Pods:
    """n1 with a dataplane and a pod, and n2, whose kernel the test makes, with another."""

    def __init__(
        self,
        hosts: TwoHosts,
        running: Running,
        pods: tuple[NetworkNamespace, NetworkNamespace],
        masq: Masq | None = None,
    ) -> None:
        self.hosts = hosts
        self.running = running
        self.pods = pods
        self.masq = masq

    async def n1(self, line: str) -> None:
        """Types a command on n1."""
        await asyncio.to_thread(self.hosts.cluster.namespace.run, "sh", "-c", line)

    async def flannelette(self, *words: str) -> tuple[int, str]:
        """Exit code and output of the command line, on n1."""
        cluster = self.hosts.cluster
        line = (sys.executable, "-m", "flannelette.services.ctl.main", f"--socket-dir={cluster.directory}", *words)
        run = partial(
            subprocess.run, env=environment(), capture_output=True, text=True, check=False, timeout=PATIENCE
        )
        done = await asyncio.to_thread(run, cluster.namespace.command(*line))
        return done.returncode, done.stdout

    @contextmanager
    def stream(self, version: int = 0) -> Iterator[Stream]:
        """100 pings a second from n1's pod to n2's in each family, or in one."""
        with ExitStack() as stack:
            paths = []
            for own, peer in self.hosts.rows:
                if version in (0, own.version):
                    pinger = stack.enter_context(Pinger(self.pods[0], own.version))
                    paths.append(Path("p1", "p2", pinger, ip_address(pod_address(peer))))
            yield Stream(paths)

    async def flows(self, version: int = 0) -> bool:
        """Whether the pings of a quarter of a second all get through."""
        with self.stream(version) as stream:
            async with stream:
                await asyncio.sleep(0.25)
        return not stream.lost

    async def until_it_flows(self, version: int = 0) -> None:
        """Returns once packets flow again."""
        async with asyncio.timeout(PATIENCE):
            while not await self.flows(version):
                pass

    async def status(self, service: str = "dataplane") -> pb.Status | masq_pb2.Status:
        """Of a service."""
        return await (self.masq or self.running).status() if service == "masq" else await self.running.status()

    async def found(self, check: str, service: str = "dataplane") -> pb.Finding | masq_pb2.Finding:
        """What this check finds, by itself, without anybody asking."""
        status = await eventually(
            lambda: self.status(service), lambda status: check in [each.check for each in status.findings]
        )
        return next(each for each in status.findings if each.check == check)

    async def looked(self) -> None:
        """Returns once what is there now was looked at twice."""
        position = (await self.running.events())[-1].position
        await self.running.resync()
        # The finding of a route that this makes tells that looks have been made, in the order of things.
        peer = self.hosts.rows[0][1]
        mark = f"{peer.subnet[:-1]}77" if peer.version == 4 else f"{peer.subnet}77"
        await self.n1(f"ip route add blackhole {mark}")
        assert mark in (await self.found("part-of-a-peer")).cause
        await self.n1(f"ip route del blackhole {mark}")
        told = [e.what for e in await self.running.events(after=position, kinds=[pb.EVENT_KIND_FAILURE])]
        assert len(told) == 1, told
        await eventually(self.running.status, lambda status: not any(mark in each.cause for each in status.findings))

    async def until_nothing_is_found(self, service: str = "dataplane") -> None:
        """Returns once there is no finding any more, without anybody asking."""
        await eventually(lambda: self.status(service), lambda status: not status.findings)


@asynccontextmanager
async def two_pods(kind: Kind) -> AsyncIterator[Pods]:
    """Packets flow between the two."""
    make_netns = NamespaceMaker()
    with ExitStack() as ending:
        ending.callback(make_netns.close)
        netns = make_netns()
        hosts = ending.enter_context(two_hosts(netns, make_netns, kind.backend, kind.families))
        pods = (make_netns(), make_netns())
        if kind.is_far:
            hosts.move_peer(FAR)
        hosts.leave_flanneld_state()
        for host, pod, rows in zip((netns, hosts.n2), pods, zip(*hosts.rows, strict=True), strict=True):
            _add_pod(host, pod, rows)
        await hosts.cluster.quiet()
        await hosts.join()
        flags = ("--audit-interval=600", f"--probe-rate={4 * kind.is_probed}", *["--ip-masq"] * kind.has_masq)
        async with restarted(hosts.cluster, *flags) as running:
            await running.until(peers=1)
            async with _masq(hosts) if kind.has_masq else nullcontext() as masq:
                scene = Pods(hosts, running, pods, masq)
                await scene.until_it_flows()
                yield scene


@asynccontextmanager
async def _masq(hosts: TwoHosts) -> AsyncIterator[Masq]:
    """Its rules are in place, and all tables that a row may use are there."""
    cluster = hosts.cluster
    for program in ("iptables-legacy", "ip6tables-legacy", "iptables-nft", "ip6tables-nft"):
        for table, chain in (("filter", "INPUT"), ("mangle", "INPUT"), ("nat", "INPUT"), ("raw", "PREROUTING")):
            cluster.namespace.run(program, "-t", table, "-P", chain, "ACCEPT")
    with entered(cluster.namespace, cluster.directory) as host:
        starting = masq_on(host, "--ip-masq", "--firewall=nftables", "--iptables-resync=600")
        masq = await starting.__aenter__()
    async with AsyncExitStack() as stack:
        stack.push_async_exit(starting)
        await masq.until()
        yield masq


def state_of(pods: Pods) -> list[str]:
    """What a test in whose scene others follow has to leave as it was on n1."""
    commands = (
        *(f"ip -{version} {what}" for version in (4, 6) for what in ("route show table all", "rule show")),
        "ip -br link show",
        "ip -br addr show",
        "bridge -d link show",
        "ip neigh show nud permanent",
        "ip xfrm policy",
        *(("nft -s list ruleset", "iptables-legacy -S", "ip6tables-legacy -S") if pods.masq else ()),
        "sysctl -e net.ipv4.ip_forward net.ipv6.conf.all.forwarding net.ipv4.conf.cni0.forwarding "
        "net.ipv4.conf.eth0.forwarding",
    )
    return [pods.hosts.cluster.run(command) for command in commands]


def _add_pod(host: NetworkNamespace, pod: NetworkNamespace, rows: tuple[Row, ...]) -> None:
    host.ip(*f"link add veth0 type veth peer name eth0 netns {pod.name}".split())
    host.ip(*"link set veth0 master cni0 up".split())
    pod.ip(*"link set eth0 up".split())
    host.run("sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1")
    for row in rows:
        nodad = ["nodad"] if row.version == 6 else []
        pod.ip("addr", "add", f"{pod_address(row)}/{row.length}", "dev", "eth0", *nodad)
        pod.ip(f"-{row.version}", *f"route add default via {row.gateway}".split())
