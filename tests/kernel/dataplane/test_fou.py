"""udp in the kernel, by FOU: restarts, repairs, peers in user space, real flannelds; both ways in turn."""

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from typing import Final

import pytest

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from tests.flannel.udp import UdpHosts, make_kernel_peer, udp_hosts
from tests.hosts.dataplane import Cluster, Running
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE
from tests.waiting import contains, eventually

pytestmark = pytest.mark.modules("fou", "ipip")
PORT: Final = "port 8285 ipproto 4 local 10.99.0.11"
DEVICE: Final = "flannel.fou"


@pytest.fixture
def hosts(netns: NetworkNamespace, make_netns: NamespaceMaker) -> Iterator[UdpHosts]:
    with udp_hosts(netns, make_netns) as found:
        yield found


def ports(cluster: Cluster) -> str:
    return " ".join(cluster.ip("fou show").split())


def shown(cluster: Cluster) -> str:
    """Port, device, address and routes, without numbers of interfaces."""
    device = cluster.ip(f"-o -d link show {DEVICE}").partition(": ")[2]
    address = cluster.ip(f"-o -4 addr show {DEVICE}").partition(": ")[2]
    routes = [line for line in cluster.routes() if DEVICE in line]
    return "\n".join([ports(cluster), " ".join(device.split()), " ".join(address.split()), *routes])


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                if await asyncio.to_thread(is_so):
                    return
            except subprocess.CalledProcessError:  # the device is not there
                pass
            await asyncio.sleep(0.05)


async def offloads(running: Running) -> list[int]:
    """What is known of the checksum offload, on each path."""
    return [probe.checksum_offload for peer in await running.peers() for probe in peer.probes]


async def test_restarts_lose_nothing_and_drift_is_repaired(hosts: UdpHosts) -> None:
    cluster, own, peer = hosts.cluster, hosts.own, hosts.peer
    make_kernel_peer(hosts.n2, peer, own)
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(cluster.dataplane())
        status = await running.until(peers=1)
        assert (status.backend, status.mtu) == ("udp", 1472)
        assert status.backend_way == "in the kernel: the kernel has FOU"
        assert "encap fou encap-sport 8285 encap-dport 8285 mtu 1472 up" in status.devices[0].description
        wanted = shown(cluster)
        assert wanted.startswith(PORT)
        assert f"{peer.cidr} via {peer.public} dev {DEVICE} proto 77 metric 1334 onlink" in wanted
        assert f" {own.subnet}/32 " in wanted
        assert await hosts.answers(size=1472)
        assert not await hosts.answers(size=1474, seconds=2)
        assert await hosts.answers(back=True)
        assert await hosts.sends()
        for damage in (
            f"fou del {PORT}",
            f"link set {DEVICE} down",
            f"link del {DEVICE}",
            f"addr del {own.subnet}/32 dev {DEVICE}",
            f"link set {DEVICE} mtu 1300",
            f"link set {DEVICE} type ipip local 10.99.0.11 ttl inherit nopmtudisc encap none",
            f"route del {peer.cidr} dev {DEVICE}",
        ):
            cluster.ip(damage)
            await until(lambda: shown(cluster) == wanted)
            assert await hosts.answers(), damage
        with hosts.stream() as stream:
            async with stream:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    await running.end(number)
                    running = await stack.enter_async_context(cluster.dataplane())
                    status = await running.until(peers=1)
                    assert status.last_resync_changes == 0
        assert (stream.sent > 0, stream.lost) == (True, [])
        assert shown(cluster) == wanted
        commands = (await running.teardown()).commands
        assert f"ip fou del {PORT.replace(' ipproto 4', '')}" in commands
        assert (ports(cluster), DEVICE in cluster.ip("link show")) == ("", False)


async def test_both_ways_follow_each_other_and_another_port(hosts: UdpHosts) -> None:
    def configure(options: str, kind: str = "udp") -> None:
        with hosts.n1.inside():
            text = f'{{"Network":"10.5.0.0/16","Backend":{{"Type":"{kind}"{options}}}}}'
            hosts.cluster.etcd.etcdctl("put", "/coreos.com/network/config", text)

    make_kernel_peer(hosts.n2, hosts.peer, hosts.own)
    cluster = hosts.cluster
    configure(',"Mode":"user"')
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        assert await hosts.answers()
        assert len(hosts.proxies()) == 1
        for backend, device in (("", DEVICE), (',"Mode":"user"', "flannel0")):
            with hosts.stream() as stream:
                async with stream:
                    configure(backend)
                    await until(lambda device=device: f"dev {device}" in " ".join(cluster.routes()))  # type: ignore[misc]
                    await running.until(peers=1)
                    assert await hosts.answers()
            print(f"to {device}: {len(stream.lost)} of {stream.sent} pings lost, in {stream.outage:.2f} s")
            other = DEVICE if device == "flannel0" else "flannel0"
            await until(lambda other=other: other not in cluster.ip("link show"))  # type: ignore[misc]
            kernel = device == DEVICE
            await until(lambda k=kernel: (ports(cluster) == PORT, hosts.proxies() == []) == (k, k))  # type: ignore[misc]
        await running.end()
    configure("")
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        assert await hosts.answers(), "the earlier process' proxy has given way"
        await until(lambda: hosts.proxies() == [])
        await running.end()
    configure(',"Port":9000')
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        await until(lambda: ports(cluster) == PORT.replace("8285", "9000"))  # that of the earlier process has gone
        configure("", "ipip")
        await until(lambda: "flannel.ipip" in cluster.ip("link show") and not ports(cluster))
        await running.end()


async def test_beside_flanneld_and_in_its_place(hosts: UdpHosts) -> None:
    """Sending goes over at once; receiving when flanneld has closed its port."""
    there, here = hosts.flanneld(hosts.n2, hosts.peer), hosts.flanneld(hosts.n1, hosts.own)
    try:
        await there.start(f"Subnet added: {hosts.own.cidr}|Running backend")
        await here.start(f"Subnet added: {hosts.peer.cidr}")
        assert await hosts.answers()
        with hosts.stream() as stream:
            async with stream, hosts.cluster.dataplane() as running:
                await until(lambda: f"dev {DEVICE}" in " ".join(hosts.cluster.routes()))
                await asyncio.sleep(1)
                before = len(stream.lost)
                began = time.monotonic()
                await here.stop()
                stopped = time.monotonic() - began
                await running.until(peers=1)
                assert await hosts.answers()
                await running.end()
        print(
            f"from flanneld, which took {stopped:.2f} s to stop: {len(stream.lost)} of {stream.sent} pings lost, "
            f"{before} before, in {stream.outage:.2f} s"
        )
        assert await hosts.answers(size=1472)
        assert await hosts.answers(size=1472, back=True)
        assert await hosts.sends()
        assert await hosts.sends(back=True)
        with hosts.stream() as stream:
            async with stream:
                async with hosts.cluster.dataplane() as running:
                    await running.until(peers=1)
                    await running.teardown()
                    await running.end()
                await here.start(f"Subnet added: {hosts.peer.cidr}")
                assert await hosts.answers()
        print(f"to flanneld: {len(stream.lost)} of {stream.sent} pings lost, in {stream.outage:.2f} s")
    finally:
        here.discard()
        there.discard()


async def test_a_peer_in_user_space_gets_no_datagram_whose_checksum_nobody_completes(hosts: UdpHosts) -> None:
    """Pings pass, TCP does not: on a veth, unless the device computes checksums itself, as it does unasked."""
    there = hosts.flanneld(hosts.n2, hosts.peer)
    try:
        await there.start(f"Subnet added: {hosts.own.cidr}|Running backend")
        for offload, state in (("on", pb.CHECKSUM_OFFLOAD_BROKEN), ("auto", pb.CHECKSUM_OFFLOAD_WORKS)):
            async with hosts.cluster.dataplane("--probe-rate=20", f"--checksum-offload={offload}") as running:
                await running.until(peers=1)
                assert await hosts.answers()
                await eventually(lambda: offloads(running), contains(state))
                causes = [(each.check, each.cause[-41:]) for each in (await running.status()).findings]
                is_broken = state == pb.CHECKSUM_OFFLOAD_BROKEN
                assert causes == [("peer-checksum", "start it without `--checksum-offload=on`.")] * is_broken
                await running.end()
    finally:
        there.discard()
