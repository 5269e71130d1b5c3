"""ipsec with real charons: pods' packets, restarts, repairs, leaks, a charon that is away, and a real flanneld.

They need strongSwan's charon, and a kernel with IPsec: `make vm-test` has both.
"""

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Final

import grpc.aio
import pytest
from flannelette.lease.v1 import lease_pb2

from lab.pings import Pinger
from lab.stream import Path as PingPath
from lab.stream import Stream
from tests.charon.real import Charon, require_ipsec
from tests.hosts.dataplane import Cluster, Running, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE

pytestmark = pytest.mark.modules("esp4", "dummy")

PSK: Final = "0123456789abcdef" * 6
NETWORK: Final = json.dumps({"Network": "10.5.0.0/16", "Backend": {"Type": "ipsec", "PSK": PSK}})
LARGEST: Final = 1423
_ETH_P_IP, _ETH_P_ALL = 0x0800, 3
_PROTOCOLS: Final = {50: "esp", 17: "udp"}


@dataclass
class Node:
    """A host with a charon, a dataplane and a pod."""

    name: str
    number: int
    namespace: NetworkNamespace
    pod: NetworkNamespace
    directory: Path
    leases: Path
    charon: Charon
    running: Running | None = None

    def arguments(self, *more: str) -> list[str]:
        return [
            f"--node={self.name}",
            f"--socket-dir={self.directory}",
            f"--lease-address=unix:{self.leases}/lease.sock",
            f"--subnet-file={self.directory}/subnet.env",
            f"--state-dir={self.directory}/state",
            f"--charon-socket={self.charon.socket}",
            "--iface=eth0",
            "--audit-interval=20",
            *more,
        ]

    @property
    def pod_address(self) -> str:
        return f"10.5.{self.number}.2"

    def start(self) -> Running:
        (self.directory / "subnet.env").write_text(f"FLANNEL_SUBNET=10.5.{self.number}.1/24\n")
        self.running = Running(self, (), ())
        return self.running

    def make_pod(self) -> None:
        self.namespace.ip(*f"link add veth0 type veth peer name eth0 netns {self.pod.name}".split())
        self.namespace.ip(*f"addr add 10.5.{self.number}.1/24 dev veth0".split())
        self.namespace.ip(*"link set veth0 up".split())
        self.pod.ip(*f"addr add {self.pod_address}/24 dev eth0".split())
        self.pod.ip(*"link set eth0 up".split())
        self.pod.ip(*f"route add default via 10.5.{self.number}.1".split())
        with self.namespace.inside():
            Path("/proc/sys/net/ipv4/ip_forward").write_text("1")

    def policies(self) -> list[str]:
        """Of the network, as `ip xfrm policy` prints them, one line each."""
        text = self.namespace.ip("xfrm", "policy", "list").replace("\n\t", " ").splitlines()
        return sorted(" ".join(line.split()) for line in text if line.startswith("src 10.5."))

    def routes(self) -> list[str]:
        return sorted(" ".join(r.split()) for r in self.namespace.ip(*"route show proto 77".split()).splitlines())

    def states(self) -> list[str]:
        """The SPIs of the tunnels in the kernel."""
        words = self.namespace.ip("xfrm", "state", "list").split()
        return sorted(word for before, word in pairwise(words) if before == "spi")


@asynccontextmanager
async def nodes(
    netns: NetworkNamespace, make_netns: NamespaceMaker, network: str = NETWORK
) -> AsyncIterator[tuple[Cluster, Node, Node]]:
    """n1 and n2 with charons and pods; no dataplane runs yet."""
    require_ipsec(netns)
    others = [make_netns() for _ in range(3)]
    with cluster_in(netns, network) as cluster:
        netns.ip("link", "set", "far", "netns", others[0].name)
        for words in ("link set far name eth0", "link set eth0 up", "addr add 10.99.0.12/16 dev eth0"):
            others[0].ip(*words.split())
        made = []
        for name, number, host, pod in (("n1", 27, netns, others[1]), ("n2", 53, others[0], others[2])):
            home = cluster.directory / name
            home.mkdir()
            node = Node(name, number, host, pod, home, cluster.directory, Charon(host, home))
            node.make_pod()
            made.append(node)
        try:
            yield cluster, made[0], made[1]
        finally:
            for node in made:
                if node.running is not None:
                    await node.running.end(signal.SIGKILL)
                node.charon.kill()


async def until(is_so: Callable[[], bool], what: Callable[[], object] = lambda: "") -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while True:
                if await asyncio.to_thread(is_so):
                    return
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(what()) from None


async def pings(source: NetworkNamespace, target: str, size: int = 0, seconds: float = 2.0) -> bool:
    with Pinger(source, 4, size=size) as pinger:
        _, taken = await pinger.ping(ip_address(target), seconds)
    return taken is not None


async def reaches(source: NetworkNamespace, target: str, why: Callable[[], str]) -> None:
    try:
        async with asyncio.timeout(PATIENCE):
            while not await pings(source, target):
                pass
    except TimeoutError:
        raise AssertionError(why()) from None


@contextmanager
def stream(one: Node, other: Node, size: int = LARGEST):  # type: ignore[no-untyped-def]  # a context manager
    with ExitStack() as stack:
        paths = []
        for a, b in ((one, other), (other, one)):
            pinger = stack.enter_context(Pinger(a.pod, 4, size=size))
            paths.append(PingPath(a.name, b.name, pinger, ip_address(b.pod_address)))
        yield Stream(paths)


class Wire:
    """What goes out by the underlay of a host.

    Not what comes in: there the kernel shows a packet of ESP a second time, as it is inside.
    """

    def __init__(self, host: NetworkNamespace) -> None:
        with host.inside():  # only a socket for all protocols is shown what goes out
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ETH_P_ALL))
            self._socket.bind(("eth0", _ETH_P_ALL))
        self._socket.setblocking(False)

    def sent(self) -> set[str]:
        """Since the last call: esp, udp (which is charon's own, or ESP in it), or the ends of a packet in clear."""
        found: set[str] = set()
        while True:
            try:
                packet, (_, protocol, direction, *_) = self._socket.recvfrom(2048)
            except BlockingIOError:
                return found
            if direction == socket.PACKET_OUTGOING and protocol == _ETH_P_IP:
                source, target = (str(ip_address(packet[at : at + 4])) for at in (12, 16))
                named = _PROTOCOLS.get(packet[9], f"protocol {packet[9]}")
                found.add(f"clear {source} {target}" if "10.5." in source + target else named)

    def close(self) -> None:
        self._socket.close()


async def both_up(one: Node, other: Node) -> None:
    for node in (one, other):
        await node.charon.start()
        node.start()
    for node in (one, other):
        assert node.running is not None
        await node.running.until(peers=1)
    await reaches(one.pod, other.pod_address, lambda: one.charon.log + other.charon.log)


async def measured(one: Node, other: Node, do: Callable[[], Awaitable[None]], name: str) -> tuple[int, int]:
    """Pings sent and lost while something is done; told to a file for whoever measures."""
    with stream(one, other) as running:
        async with running:
            await asyncio.sleep(1)
            await do()
            await asyncio.sleep(1)
    found = running.sent, len(running.lost)
    _tell(f"{name}: {found[1]} of {found[0]} lost\n")
    _tell("".join(f"  {each}\n" for each in running.lost))
    return found


def _tell(line: str) -> None:
    if path := os.environ.get("FLANNELETTE_FIGURES"):
        with Path(path).open("a") as file:
            file.write(line)


async def test_pods_and_nodes_reach_each_other_through_restarts_damage_and_a_charon_that_is_away(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with nodes(netns, make_netns) as (cluster, n1, n2):
        wire = Wire(n2.namespace)
        await both_up(n1, n2)
        running = n1.running
        assert running is not None
        wire.sent()
        assert await pings(n1.pod, n2.pod_address, LARGEST)
        assert await pings(n1.namespace, n2.pod_address), "a node reaches a pod"
        assert wire.sent() - {"udp"} == {"esp"}
        status = await running.status()
        assert status.mtu == LARGEST
        shown = str(status) + str(await running.peers()) + running.log + str(await running.events())
        assert PSK not in shown

        # nothing leaves in clear: a subnet without a peer, and a peer's while its policy is away
        assert not await pings(n1.pod, "10.5.99.2", seconds=0.5)
        assert await pings(n1.pod, "10.5.27.1"), "own addresses are reached"
        assert wire.sent() <= {"esp", "udp"}

        # drift of each kind
        policies, routes = n1.policies(), n1.routes()
        assert len(policies) == 9, policies
        for damage in (
            "ip xfrm policy del src 10.5.27.0/24 dst 10.5.53.0/24 dir out",
            "ip xfrm policy del src 10.5.53.0/24 dst 10.5.27.0/24 dir fwd",
            "ip xfrm policy del src 10.5.27.0/24 dst 10.5.0.0/16 dir out",
            "ip xfrm policy update src 10.5.27.0/24 dst 10.5.53.0/24 dir out priority 5",
            "ip xfrm policy flush",
            "ip route del 10.5.53.0/24 proto 77",
            "ip link del flannel.ipsec",
            "ip addr del 10.5.27.0/32 dev flannel.ipsec",
        ):
            n1.namespace.run(*damage.split())
            await until(
                lambda: (n1.policies(), n1.routes()) == (policies, routes),
                lambda damage=damage: f"{damage}\n{n1.policies()}\n{n1.routes()}\n{running.log}",  # type: ignore[misc]
            )
            await reaches(n1.pod, n2.pod_address, lambda: running.log)
        assert wire.sent() <= {"esp", "udp"}

        # restarts
        before = n1.states()

        async def restart() -> None:
            assert n1.running is not None
            await n1.running.end(signal.SIGKILL)
            await n1.start().until(peers=1)

        _, lost = await measured(n1, n2, restart, "dataplane killed and restarted")
        assert lost == 0
        assert n1.states() == before

        async def replace_charon() -> None:
            n1.charon.kill()
            assert n1.running is not None
            status = await n1.running.until(ready=False)
            assert any("charon (strongSwan) does not answer" in reason for reason in status.reasons)
            await asyncio.sleep(2)
            await n1.charon.start()
            await n1.running.until(peers=1)
            await until(lambda: len(n1.states()) > len(before), lambda: n1.charon.log)

        _, lost = await measured(n1, n2, replace_charon, "charon killed and replaced")
        assert lost == 0

        # a peer that leaves while the dataplane is away is gone
        assert n1.running is not None
        await n1.running.end(signal.SIGKILL)
        await n2.running.end(signal.SIGTERM)  # type: ignore[union-attr]
        async with cluster.calls() as stub:
            await stub.ReleaseLease(lease_pb2.ReleaseLeaseRequest(node="n2"))
        again = n1.start()
        await again.until(peers=0)
        assert (len(n1.policies()), n1.routes()) == (6, [])
        listed = await again.teardown()
        assert PSK not in str(listed)
        assert n1.policies() == []
        assert "flannel.ipsec" not in n1.namespace.ip("link", "show")
        wire.close()


async def test_a_charon_that_is_not_there_is_waited_for_and_hostile_leases_get_nothing(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with nodes(netns, make_netns) as (cluster, n1, _):
        running = n1.start()
        status = await running.until(ready=False, backend="ipsec")
        await until(lambda: "charon is not there" in running.log, lambda: running.log)
        for node, cidr, address in (
            ("h1", "10.5.90.0/24", "10.99.0.11"),  # our own address
            ("h2", "10.5.91.0/24", "127.0.0.1"),
            ("h3", "10.6.0.0/24", "10.99.0.77"),
        ):
            part = lease_pb2.Subnet(cidr=cidr, public_address=address)
            request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[part], backend_type="ipsec")
            async with cluster.calls() as stub:
                with suppress(grpc.aio.AioRpcError):  # the lease service refuses some, the dataplane the others
                    await stub.AcquireLease(request, timeout=PATIENCE)
        await n1.charon.start()
        status = await running.until(ready=True)
        assert status.reasons == []
        assert not [line for line in n1.policies() if "10.5.90.0" in line or "10.6.0.0" in line]
