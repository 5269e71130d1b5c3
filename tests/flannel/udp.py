"""Two hosts of a network with backend udp: n1 gets a dataplane, n2 takes part by what a test starts."""

import asyncio
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from flannelette.services.dataplane.backends.udp import PROXY
from lab.pings import Pinger
from lab.stream import Path as StreamPath
from lab.stream import Stream
from tests.flannel.real import Flanneld, SharedStore
from tests.hosts.dataplane import environment
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import Row, subnet_env, two_hosts
from tests.patience import PATIENCE
from tests.tools import cached, lacking

UDP: Final = '{"Network":"10.5.0.0/16"}'
"""No `Backend` means udp."""
SUBNETS: Final = "/coreos.com/network/subnets"
_RECEIVE: Final = """
import hashlib, socket, sys
s = socket.create_server((sys.argv[1], 9000)); print(flush=True)
c, digest = s.accept()[0], hashlib.sha256()
while data := c.recv(1 << 16): digest.update(data)
print(digest.hexdigest())
"""
_SEND: Final = """
import hashlib, socket, sys
s, data = socket.create_connection((sys.argv[1], 9000), 30), bytes(range(256)) * int(sys.argv[2])
s.settimeout(60); s.sendall(data)
"""


class UdpHosts(NamedTuple):
    """Both; see `udp_hosts`."""

    cluster: SharedStore
    n1: NetworkNamespace
    n2: NetworkNamespace
    own: Row
    peer: Row

    async def answers(
        self, target: str = "", size: int = 0, seconds: float = PATIENCE, *, back: bool = False
    ) -> bool:
        """Whether a ping from n1 to a pod of n2, or `back`, is answered in time; `size` as in `Pinger`."""
        host, address = (self.n2, self.own.gateway) if back else (self.n1, target or self.peer.gateway)
        with Pinger(host, size=size) as pinger:
            found, waited = None, 0.0
            while found is None and waited < seconds:
                _, found = await pinger.ping(ip_address(address), 0.5)
                waited += 0.5
        return found is not None

    @contextmanager
    def stream(self) -> Iterator[Stream]:
        """100 full-size pings a second, each way."""
        with Pinger(self.n1, size=1472) as there, Pinger(self.n2, size=1472) as back:
            ends = ((there, "n1", "n2", self.peer), (back, "n2", "n1", self.own))
            yield Stream([StreamPath(a, b, pinger, ip_address(row.gateway)) for pinger, a, b, row in ends])

    async def sends(self, *, back: bool = False, blocks: int = 8192) -> bool:
        """Whether a TCP stream of so many blocks of 256 bytes arrives as it was sent: from n1 to n2, or `back`."""
        source, sink, row = (self.n2, self.n1, self.own) if back else (self.n1, self.n2, self.peer)
        receiver = await asyncio.create_subprocess_exec(
            *sink.command(sys.executable, "-c", _RECEIVE, row.gateway), stdout=asyncio.subprocess.PIPE
        )
        try:
            assert receiver.stdout
            await receiver.stdout.readline()
            sender = await asyncio.create_subprocess_exec(
                *source.command(sys.executable, "-c", _SEND, row.gateway, str(blocks))
            )
            assert await asyncio.wait_for(sender.wait(), PATIENCE) == 0
            digest = (await asyncio.wait_for(receiver.stdout.readline(), PATIENCE)).decode().strip()
        finally:
            with suppress(ProcessLookupError):
                receiver.kill()
            await receiver.wait()
        return digest == hashlib.sha256(bytes(range(256)) * blocks).hexdigest()

    def publish(self, subnet: str, public: str, **more: object) -> None:
        """A lease in the store, as a flanneld writes it."""
        value = json.dumps({"PublicIP": public, "PublicIPv6": None, **more})
        with self.n1.inside():
            self.cluster.etcd.etcdctl("put", f"{SUBNETS}/{subnet.replace('/', '-')}", value)

    def lease(self, row: Row) -> str:
        """What the store has of a host."""
        with self.n1.inside():
            return self.cluster.etcd.etcdctl("get", f"{SUBNETS}/{row.subnet}-{row.length}").splitlines()[1]

    def flanneld(self, host: NetworkNamespace, row: Row) -> Flanneld:
        """A real one, not started; where it has been built without udp the test is skipped (`lacking`)."""
        stamp = cached("bin/flanneld.version", "flanneld")
        if not stamp.exists() or "udp" not in stamp.read_text():
            lacking("there is no flanneld with udp: `make tools`, where gcc is (lab/flanneld.sh)")
        home = (
            self.cluster.directory / ("n1" if host is self.n1 else "n2")
            if host is self.n2
            else self.cluster.directory
        )
        home.mkdir(exist_ok=True)
        (home / "subnet.env").write_text(subnet_env([row]))
        return Flanneld(self.cluster, host, home)

    def proxies(self) -> list[int]:
        """The process ids of n1's proxies that carry packets or wait for their turn."""
        found = []
        space = self.n1.path.stat().st_ino
        for each in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                is_ours = each.with_name("ns").joinpath("net").stat().st_ino == space
                if PROXY.encode() in each.read_bytes() and is_ours:
                    found.append(int(each.parent.name))
        return found


@contextmanager
def udp_hosts(netns: NetworkNamespace, make_netns: NamespaceMaker, configuration: str = UDP) -> Iterator[UdpHosts]:
    """The lease of n2 is there; nothing else is, on either."""
    with two_hosts(netns, make_netns, "host-gw", "ipv4", SharedStore, configuration) as hosts:
        cluster = hosts.cluster
        assert isinstance(cluster, SharedStore)
        ((own, peer),) = hosts.rows
        found = UdpHosts(cluster, netns, hosts.n2, own, peer)
        found.publish(peer.cidr, peer.public)
        try:
            yield found
        finally:
            subprocess.run(netns.command("ip", "link", "del", "flannel0"), capture_output=True, check=False)
            cluster.close()


class UserPeer:
    """A host with a TUN device, a route and our proxy, without a dataplane."""

    def __init__(self, host: NetworkNamespace, own: Row, other: Row) -> None:
        for line in (
            "tuntap add flannel0 mode tun",
            "link set flannel0 mtu 1472 up",
            f"addr add {own.subnet}/32 dev flannel0",
            f"route add {other.cidr} via {other.public} dev flannel0 onlink",
        ):
            host.ip(*line.split())
        self._command = host.command(sys.executable, "-m", PROXY, "flannel0", own.public, "8285")
        self.start()

    def start(self) -> None:
        """Starts the proxy; returns when it says that it is ready."""
        self._process = subprocess.Popen(self._command, env=environment(), stdout=subprocess.PIPE)
        assert self._process.stdout
        assert self._process.stdout.readline() == b"ready\n"

    @property
    def pid(self) -> int:
        """Of the proxy."""
        return self._process.pid

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


def make_kernel_peer(host: NetworkNamespace, own: Row, other: Row) -> None:
    """A host with FOU, by `ip`."""
    tunnel = f"local {own.public} ttl inherit nopmtudisc encap fou encap-sport 8285 encap-dport 8285"
    for line in (
        f"fou add port 8285 ipproto 4 local {own.public}",
        f"link add f type ipip {tunnel}",
        "link set f up",
        f"addr add {own.subnet}/32 dev f",
        f"route add {other.cidr} via {other.public} dev f onlink",
    ):
        host.ip(*line.split())
