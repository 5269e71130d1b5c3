"""Two hosts with a charon, a dataplane and a pod each, for backend ipsec; and what leaves a host by its underlay."""

import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.charon.real import Charon, require_charon
from tests.hosts.dataplane import Cluster, Running, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace

_ETH_P_IP, _ETH_P_ALL = 0x0800, 3
_ICMP: Final = 1
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

    @property
    def dataplane(self) -> Running:
        """The process that was started last."""
        assert self.running is not None
        return self.running

    @property
    def log(self) -> str:
        return self.dataplane.log

    def all_policies(self) -> list[str]:
        """As `ip xfrm policy` prints them, one line each."""
        text = self.namespace.ip("xfrm", "policy", "list").replace("\n\t", " ").splitlines()
        return sorted(" ".join(line.split()) for line in text if "socket" not in line)

    def policies(self) -> list[str]:
        """Those of the network."""
        return [line for line in self.all_policies() if line.startswith("src 10.5.")]

    def swanctl(self, *words: str) -> str:
        """What it prints of this host's charon."""
        return self.namespace.run("swanctl", *words, "--uri", f"unix://{self.charon.socket}")

    def connection(self) -> str:
        """The name of that of the dataplane's in charon."""
        return next(line.partition(": ")[0] for line in self.swanctl("--list-conns").splitlines() if line[:1].strip())

    def routes(self) -> list[str]:
        return sorted(" ".join(r.split()) for r in self.namespace.ip(*"route show proto 77".split()).splitlines())

    def states(self) -> list[str]:
        """The SPIs of the tunnels in the kernel."""
        words = self.namespace.ip("xfrm", "state", "list").split()
        return sorted(word for before, word in pairwise(words) if before == "spi")


@asynccontextmanager
async def nodes(
    netns: NetworkNamespace, make_netns: NamespaceMaker, network: str
) -> AsyncIterator[tuple[Cluster, Node, Node]]:
    """n1 and n2 with charons and pods; no dataplane runs yet."""
    require_charon()
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
                if "10.5." in source + target:
                    found.add(f"clear {source} {target}")
                elif packet[9] != _ICMP:  # the dataplane's probes of the underlay
                    found.add(named)

    def close(self) -> None:
        self._socket.close()
