"""wireguard: a node beside a real flanneld, its restarts, repairs and hostile leases."""

import asyncio
import json
import signal
import subprocess
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from ipaddress import ip_address
from pathlib import Path
from typing import Final

import grpc.aio
import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2
from flannelette.services.dataplane.backends.wireguard import private_key, public_key
from lab.pings import Pinger
from tests.flannel.turns import node
from tests.hosts.dataplane import Cluster, Running, cluster_in
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.hosts.two_hosts import Row, network
from tests.patience import PATIENCE
from tests.waiting import eventually

pytestmark = pytest.mark.modules("wireguard")
PSK: Final = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
NETWORK: Final = f'{{"Network":"10.5.0.0/16","Backend":{{"Type":"wireguard","PSK":"{PSK}"}}}}'
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
        (self.directory / "psk").write_text(PSK)
        settings = f"listen-port 51820 private-key {self.directory}/n2-key"
        allowed = f"preshared-key {self.directory}/psk allowed-ips 10.5.27.0/24"
        self.host.run(*f"wg set {DEVICE} {settings} peer {peer} {allowed}".split())

    async def join(self, cluster: Cluster, key: str = "", node: str = "n2", number: int = 53, at: int = 12) -> None:
        part = lease_pb2.Subnet(cidr=f"10.5.{number}.0/24", public_address=f"10.99.0.{at}")
        part.wireguard.public_key, part.wireguard.port = key or self.public_key, 51820
        request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[part], backend_type="wireguard")
        async with cluster.calls() as stub:
            await stub.AcquireLease(request, timeout=PATIENCE)


@asynccontextmanager
async def two(netns: NetworkNamespace, make_netns: NamespaceMaker) -> AsyncIterator[tuple[Cluster, Peer]]:
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
    assert all(line.split()[1] == PSK for line in peers[1:])
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
            assert f"{n2.public_key} {PSK} 10.99.0.12:51820 10.5.53.0/24" in wanted
            await _reaches(cluster)
            (peer,) = (await running.stub.ListPeers(pb.ListPeersRequest(figures=True))).peers
            received, sent = map(int, cluster.run(f"wg show {DEVICE} transfer").split()[1:])
            assert (0 < peer.received_bytes <= received, 0 < peer.sent_bytes <= sent) == (True, True)
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
            await _reaches(cluster)
            peers = await _looked_at(running)
            for words in (
                f"wg {DEVICE} peer {n2.public_key} preshared-key (hidden)",
                "latest handshake: ",
                "transfer: ",
            ):
                assert words in peers
            assert await _secrets_in(cluster, running) == []
            before = cluster.run(f"wg show {DEVICE} latest-handshakes")
            assert await running.end(signal.SIGKILL) == -signal.SIGKILL
        async with cluster.dataplane() as again:
            await again.until(peers=1)
            assert shown(cluster) == wanted
            assert cluster.run(f"wg show {DEVICE} latest-handshakes") == before, "no new session was needed"
            assert await _pings(cluster)
            await again.teardown()
            assert DEVICE not in cluster.ip("link show")


async def test_a_peer_that_answers_again_is_seen_although_nobody_sends_to_it(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    async with two(netns, make_netns) as (cluster, n2), cluster.dataplane("--audit-interval=2") as running:
        await running.until(peers=0)
        await n2.join(cluster)  # whose kernel has no device yet
        status = await eventually(running.status, lambda status: status.peers.failed)
        assert "no peer is reached: no WireGuard handshake with 10.99.0.12:51820 succeeds" in str(status.reasons)
        # The kernel tries for 90 s; as if these were over:
        settings = f"preshared-key {cluster.directory}/psk endpoint 10.99.0.12:51820 allowed-ips 10.5.53.0/24"
        n2.make(base64(public_key(private_key(cluster.directory / "wgkey"))))
        cluster.run(f"wg set {DEVICE} peer {n2.public_key} remove peer {n2.public_key} {settings}")
        status = await running.until(peers=1)
        assert (status.ready, status.peers.failed) == (True, 0)


async def _looked_at(running: Running) -> str:
    """As `flannelette peers n2` asks for it."""
    request = pb.ListPeersRequest(name="n2", look=True)
    return str(await running.stub.ListPeers(request, timeout=PATIENCE))


async def _secrets_in(cluster: Cluster, running: Running) -> list[str]:
    """Where a private or preshared key is shown, of all that the services tell."""
    cluster.run(f"wg set {DEVICE} peer {base64(bytes(range(9, 41)))} preshared-key {cluster.directory}/psk")
    told = {
        "log": running.log + cluster.leases.log.read_text(),
        "status": str(await running.status()),
        "peers": await _looked_at(running),
        "plan": str(await running.resync(dry_run=True)),
        "resync": str(await running.resync()),
        "events": str(await running.events()),
        "teardown": str(await running.stub.TeardownKernel(pb.TeardownKernelRequest(dry_run=True), timeout=PATIENCE)),
    }
    async with cluster.calls() as stub:
        told["lease status"] = str(await stub.GetStatus(lease_pb2.GetStatusRequest()))
    private = private_key(cluster.directory / "wgkey")
    secrets = [form for key in (private, b64decode(PSK)) for form in (base64(key), key.hex(), repr(bytes(key))[2:-1])]
    return [name for name, text in told.items() if any(secret in text for secret in secrets)]


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
    async with node(netns, make_netns, "wireguard", "dual") as n1:
        await n1.start_flanneld()
        await asyncio.gather(*(_answers(n1.cluster, row) for _, row in n1.hosts.rows))
        sessions = _sessions(n1.cluster)
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
        assert _sessions(n1.cluster) == sessions, "no new session was needed"
        await n1.start_flanneld()  # which deletes the devices and makes its own
        assert "proto 77" not in " ".join(await n1.objects())


async def test_a_flanneld_that_is_stopped_is_replaced_and_comes_back(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    """It deletes its devices when it ends and when it starts, so there are gaps; they are printed."""
    async with node(netns, make_netns, "wireguard", "dual") as n1:
        await n1.start_flanneld()
        async with n1.cluster.dataplane("--ip-masq") as running:
            await running.until(peers=1)
            with n1.hosts.stream() as stream:
                async with stream:
                    await asyncio.sleep(0.5)
                    await n1.flanneld.stop()
                    await asyncio.gather(*(_answers(n1.cluster, row) for _, row in n1.hosts.rows))
                print(f"from a stopped flanneld: {len(stream.lost)} of {stream.sent} lost, in {stream.outage:.2f} s")
            await running.end()
        with n1.hosts.stream() as stream:
            async with stream:
                await n1.start_flanneld()
                await asyncio.gather(*(_answers(n1.cluster, row) for _, row in n1.hosts.rows))
            print(f"back to flanneld: {len(stream.lost)} of {stream.sent} lost, in {stream.outage:.2f} s")


@pytest.mark.parametrize(("mode", "endpoint"), [("auto", "10.99.0.12:51820"), ("ipv6", "[fd00:99::12]:51820")])
async def test_one_device_for_both_families_reaches_a_flanneld(
    netns: NetworkNamespace, make_netns: NamespaceMaker, mode: str, endpoint: str
) -> None:
    """Although flanneld publishes the other port, and listens on ours."""
    configuration = json.loads(network("wireguard", "dual"))
    configuration["Backend"]["Mode"] = mode
    changed = json.dumps(configuration)
    async with (
        node(netns, make_netns, "wireguard", "dual", configuration=changed) as n1,
        n1.cluster.dataplane("--ip-masq") as running,
    ):
        await running.until(peers=1)
        await asyncio.gather(*(_answers(n1.cluster, row) for _, row in n1.hosts.rows))
        endpoints = n1.cluster.run(f"wg show {DEVICE} endpoints").split()
        assert endpoints[1:] == [endpoint]
        await running.teardown()


def _sessions(cluster: Cluster) -> list[str]:
    """The peers with the time of their last handshake, of both devices."""
    return [cluster.run(f"wg show {device} latest-handshakes") for device in (DEVICE, f"{DEVICE}-v6")]


async def _answers(cluster: Cluster, row: Row) -> None:
    """Returns when a full-size packet comes back."""
    with Pinger(cluster.namespace, row.version, size=1420 - (28 if row.version == 4 else 48)) as pinger:
        async with asyncio.timeout(PATIENCE):
            while (await pinger.ping(ip_address(row.gateway), 0.2))[1] is None:
                pass
