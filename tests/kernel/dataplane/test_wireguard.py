"""wireguard: a node beside a real flanneld, its restarts, repairs and hostile leases.

Where this kernel has no WireGuard, the tests run in a machine that has it, see `tests/kinds.py`, with those of
tests/kernel/netlink/test_wireguard.py.
"""

import asyncio
import signal
import subprocess
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import grpc.aio
import pytest
from flannelette.lease.v1 import lease_pb2

from lab.pings import Pinger
from services.dataplane.netlink.wireguard.key_file import private_key, public_key
from tests.flannel.turns import node
from tests.hosts.dataplane import Cluster, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.kinds import require_kind
from tests.patience import PATIENCE

NETWORK: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"wireguard"}}'
DEVICE: Final = "flannel-wg"


def base64(key: bytes) -> str:
    return b64encode(key).decode()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await asyncio.to_thread(is_so):
                return
            await asyncio.sleep(0.05)


class Peer:
    """n2, which takes part by its kernel alone: 10.5.53.0/24 at 10.99.0.12."""

    def __init__(self, host: NetworkNamespace, directory: Path) -> None:
        self.host = host
        self.directory = directory
        self.key = private_key(directory / "n2-key")

    @property
    def public_key(self) -> str:
        return base64(public_key(self.key))

    def make(self, peer: str) -> None:
        """The device of n2, and n1 as its peer, which has this public key."""
        for words in (
            f"link add {DEVICE} mtu 1420 type wireguard",
            f"addr add 10.5.53.0/32 dev {DEVICE}",
            f"link set {DEVICE} up",
            f"route add 10.5.0.0/16 dev {DEVICE}",
        ):
            self.host.ip(*words.split())
        settings = f"listen-port 51820 private-key {self.directory}/n2-key"
        self.host.run(*f"wg set {DEVICE} {settings} peer {peer} allowed-ips 10.5.27.0/24".split())

    async def join(self, cluster: Cluster, key: str = "", node: str = "n2", number: int = 53, at: int = 12) -> None:
        part = lease_pb2.Subnet(cidr=f"10.5.{number}.0/24", public_address=f"10.99.0.{at}")
        part.wireguard.public_key, part.wireguard.port = key or self.public_key, 51820
        request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[part], backend_type="wireguard")
        async with cluster.calls() as stub:
            await stub.AcquireLease(request, timeout=PATIENCE)


@asynccontextmanager
async def two(netns: NetworkNamespace, make_netns: NamespaceMaker) -> AsyncIterator[tuple[Cluster, Peer]]:
    require_kind(netns, "wireguard")
    n2 = make_netns()
    with cluster_in(netns, NETWORK) as cluster:
        netns.ip("link", "set", "far", "netns", n2.name)
        for words in ("link set far name eth0", "link set eth0 up", "addr add 10.99.0.12/16 dev eth0"):
            n2.ip(*words.split())
        yield cluster, Peer(n2, cluster.directory)


def shown(cluster: Cluster) -> str:
    """Devices, addresses, routes and peers, without what changes by itself."""
    device = cluster.ip(f"-o -d link show {DEVICE}").partition(": ")[2]
    routes = cluster.ip("route show root 10.5.0.0/16").splitlines()
    address = cluster.ip(f"-o -4 addr show {DEVICE}").partition(": ")[2]
    peers = [" ".join(line.split()[:4]) for line in cluster.run(f"wg show {DEVICE} dump").splitlines()]
    return "\n".join([device, address, *sorted(" ".join(line.split()) for line in routes), *sorted(peers)])


async def test_a_node_restarts_without_a_loss_is_repaired_and_refuses_hostile_leases(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with two(netns, make_netns) as (cluster, n2):
        async with cluster.dataplane() as running:
            await running.until(peers=0)
            own = base64(public_key(private_key(cluster.directory / "wgkey")))
            n2.make(own)
            await n2.join(cluster)
            await running.until(peers=1)
            wanted = shown(cluster)
            assert "10.5.0.0/16 dev flannel-wg proto 77 scope link" in wanted
            assert f"{n2.public_key} (none) 10.99.0.12:51820 10.5.53.0/24" in wanted
            await _reaches(cluster)
            for stolen in (own, n2.public_key):
                with pytest.raises(grpc.aio.AioRpcError, match="cannot have the public key"):
                    await n2.join(cluster, stolen, "n9", 90, 99)

            for damage in (
                f"ip link set {DEVICE} down",
                f"ip link del {DEVICE}",
                f"ip addr del 10.5.27.0/32 dev {DEVICE}",
                f"ip link set {DEVICE} mtu 1300",
                f"ip route del 10.5.0.0/16 dev {DEVICE}",
                f"ip route del 10.5.53.0/24 dev {DEVICE}",
            ):
                cluster.run(damage)
                await until(lambda: _is(cluster, wanted))
                await _reaches(cluster)
            cluster.run(f"wg set {DEVICE} peer {n2.public_key} remove")
            await running.resync()
            await until(lambda: _is(cluster, wanted))
            status = str(await running.status())
            private = base64(private_key(cluster.directory / "wgkey"))
            assert private not in status + running.log
            assert f"wg {DEVICE} peer {n2.public_key}" in str(await running.peers())
            await _reaches(cluster)
            before = cluster.run(f"wg show {DEVICE} latest-handshakes")
            assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        async with cluster.dataplane() as again:
            await again.until(peers=1)
            assert shown(cluster) == wanted
            assert cluster.run(f"wg show {DEVICE} latest-handshakes") == before, "no new session was needed"
            assert await _pings(cluster)
            await again.teardown()
            assert DEVICE not in cluster.ip("link show")


async def _pings(cluster: Cluster) -> bool:
    with Pinger(cluster.namespace, 4) as pinger:
        _, seconds = await pinger.ping(ip_address("10.5.53.0"), 1.0)
    return seconds is not None


async def _reaches(cluster: Cluster) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await _pings(cluster):
            pass


def _is(cluster: Cluster, wanted: str) -> bool:
    try:
        return shown(cluster) == wanted
    except subprocess.CalledProcessError:  # the device is not there
        return False


async def test_a_node_is_taken_over_from_flanneld_and_goes_back(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    require_kind(netns, "wireguard")
    async with node(netns, make_netns, "wireguard", "dual") as n1:
        await n1.start_flanneld()
        with n1.hosts.stream({4: 1420 - 28, 6: 1420 - 48}) as stream:
            n1.flanneld.discard()
            async with stream:
                async with n1.cluster.dataplane("--ip-masq") as running:
                    await running.until(peers=1)
                    await asyncio.sleep(1)
                    await running.end(signal.SIGKILL)
                async with n1.cluster.dataplane("--ip-masq") as running:
                    await running.until(peers=1)
        assert (stream.sent > 0, stream.lost) == (True, [])
        await n1.start_flanneld()  # which deletes the devices and makes its own
        assert "proto 77" not in " ".join(await n1.objects())
