"""udp in user space: a dataplane and its proxy on n1, a proxy alone on n2."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from lab.pings import Pinger
from tests.flannel.real import SharedStore
from tests.hosts.dataplane import Running, environment
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import Row, two_hosts
from tests.patience import PATIENCE
from tests.services.lease import eventually

UDP: Final = '{"Network":"10.5.0.0/16"}'
"""No `Backend` means udp."""
SUBNETS: Final = "/coreos.com/network/subnets"
PROXY: Final = b"services.dataplane.udp.proxy"


class Scene(NamedTuple):
    cluster: SharedStore
    n2: NetworkNamespace
    own: Row
    peer: Row


class Peer:
    """n2: a TUN device, a route and our proxy, without a dataplane."""

    def __init__(self, host: NetworkNamespace, own: Row, other: Row) -> None:
        for line in (
            "tuntap add flannel0 mode tun",
            "link set flannel0 mtu 1472 up",
            f"addr add {own.subnet}/32 dev flannel0",
            f"route add {other.cidr} via {other.public} dev flannel0 onlink",
        ):
            host.ip(*line.split())
        command = (sys.executable, "-m", PROXY.decode(), "flannel0", own.public, "8285")
        self._process = subprocess.Popen(host.command(*command), env=environment(), stdout=subprocess.PIPE)
        assert self._process.stdout
        assert self._process.stdout.readline() == b"ready\n"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture
def scene(netns: NetworkNamespace, make_netns: NamespaceMaker) -> Iterator[Scene]:
    """n2 carries packets already, n1 has nothing yet; the lease of n2 is there."""
    with two_hosts(netns, make_netns, "host-gw", "ipv4", SharedStore, UDP) as hosts:
        cluster = hosts.cluster
        assert isinstance(cluster, SharedStore)
        ((own, peer),) = hosts.rows
        value = json.dumps({"PublicIP": peer.public, "PublicIPv6": None})
        with netns.inside():
            cluster.etcd.etcdctl("put", f"{SUBNETS}/{peer.subnet}-24", value)
        n2 = Peer(hosts.n2, peer, own)
        try:
            yield Scene(cluster, hosts.n2, own, peer)
        finally:
            n2.end()
            cluster.close()


def proxies(running: Running) -> list[int]:
    """The process ids of a dataplane's proxies."""
    found = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if (
                PROXY in each.read_bytes()
                and f"PPid:\t{running.process.pid}\n" in each.with_name("status").read_text()
            ):
                found.append(int(each.parent.name))
    return found


async def answers(host: NetworkNamespace, address: str, size: int = 0, seconds: float = PATIENCE) -> bool:
    """Whether a ping is answered in time; with a `size`, of so many bytes, which nobody divides."""
    with Pinger(host, size=size) as pinger:
        found, waited = None, 0.0
        while found is None and waited < seconds:
            _, found = await pinger.ping(ip_address(address), 0.5)
            waited += 0.5
    return found is not None


async def test_pods_of_two_hosts_reach_each_other(netns: NetworkNamespace, scene: Scene) -> None:
    cluster, n2, own, peer = scene
    async with cluster.dataplane() as running:
        status = await running.until(peers=1)
        assert (status.backend, status.mtu) == ("udp", 1472)
        assert await answers(netns, peer.gateway)
        assert await answers(n2, own.gateway)
        assert await answers(netns, peer.gateway, 1472)
        assert not await answers(netns, peer.gateway, 1474, 1)
        key = f"/coreos.com/network/subnets/{own.subnet}-24"
        with netns.inside():
            value = cluster.etcd.etcdctl("get", key).splitlines()[1]
        assert value == '{"PublicIP":"10.99.0.11","PublicIPv6":null}'
        address = json.loads(cluster.ip("-j addr show flannel0"))[0]
        assert (address["mtu"], address["addr_info"][0]["local"]) == (1472, own.subnet)
        assert sorted(cluster.routes()) == [
            "10.5.0.0/16 dev flannel0 proto 77 scope link metric 2566",
            f"{own.cidr} dev cni0 proto kernel scope link src {own.gateway}",
            f"{peer.cidr} via {peer.public} dev flannel0 proto 77 metric 1334 onlink",
        ]
        (proxy,) = proxies(running)
        assert not (await running.teardown()).errors
        assert "flannel0" not in cluster.ip("link show")
        await eventually(lambda: proxies(running) not in ([], [proxy]))
        assert "flannel0" not in cluster.ip("link show"), "the next proxy waits for the device"
        await running.resync()
        assert await answers(netns, peer.gateway)


async def test_a_packet_to_a_subnet_that_no_node_has_is_answered(netns: NetworkNamespace, scene: Scene) -> None:
    cluster, _, _, peer = scene
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        assert await answers(netns, peer.gateway)
        program = (
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); "
            "s.setsockopt(0, 11, 1); s.connect(('10.5.200.1', 9)); s.send(b'x'); s.recv(1)"
        )
        done = await asyncio.to_thread(
            subprocess.run, netns.command("python3", "-c", program), capture_output=True, text=True, check=False
        )
        assert "Network is unreachable" in done.stderr


async def test_a_dead_proxy_and_drift_are_repaired_and_a_restart_keeps_the_routes(
    netns: NetworkNamespace, scene: Scene
) -> None:
    cluster, n2, own, peer = scene
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        assert await answers(netns, peer.gateway)
        (proxy,) = proxies(running)
        os.kill(proxy, signal.SIGKILL)
        await eventually(lambda: proxies(running) not in ([], [proxy]))
        assert await answers(netns, peer.gateway)
        for damage in (
            f"route del {peer.cidr} dev flannel0",
            "link set flannel0 down",
            f"addr del {own.subnet}/32 dev flannel0",
            "link del flannel0",
        ):
            cluster.ip(damage)
            assert await answers(netns, peer.gateway)
        assert await answers(n2, own.gateway)
        index = json.loads(cluster.ip("-j link show flannel0"))[0]["ifindex"]
        (proxy,) = proxies(running)
        assert await running.end(signal.SIGKILL) == -signal.SIGKILL
    await eventually(lambda: not Path(f"/proc/{proxy}").exists())
    assert f"{peer.cidr} via {peer.public} dev flannel0" in "\n".join(cluster.routes())
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        assert await answers(netns, peer.gateway)
        assert json.loads(cluster.ip("-j link show flannel0"))[0]["ifindex"] == index


async def test_a_taken_port_is_told(netns: NetworkNamespace, scene: Scene) -> None:
    cluster, *_ = scene
    program = (
        "import socket, time; s = socket.socket(2, 2); s.bind(('10.99.0.11', 8285)); "
        "print(flush=True); time.sleep(1000)"
    )
    command = netns.command("python3", "-c", program)
    thief = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220 - it is started at once
    try:
        assert thief.stdout
        assert thief.stdout.readline(), "it has the port before the dataplane starts"
        async with cluster.dataplane() as running, asyncio.timeout(PATIENCE):
            while not any("Address already in use" in reason for reason in (await running.status()).reasons):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            thief.kill()
            thief.wait()
            await running.until(peers=1)
    finally:
        thief.kill()
        thief.wait()
