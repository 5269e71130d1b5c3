"""udp in user space: a dataplane and its proxy on n1, a proxy alone or a real flanneld on n2."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AsyncExitStack
from typing import Final

import grpc.aio
import pytest

from tests.flannel.udp import UdpHosts, UserPeer, udp_hosts
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.modules import has_module
from tests.patience import PATIENCE
from tests.waiting import contains, equals, eventually, has

USER: Final = '{"Network":"10.5.0.0/16","Backend":{"Type":"udp","Mode":"user"}}'


@pytest.fixture
def hosts(netns: NetworkNamespace, make_netns: NamespaceMaker) -> Iterator[UdpHosts]:
    with udp_hosts(netns, make_netns, USER) as found:
        yield found


@pytest.fixture
def scene(hosts: UdpHosts) -> Iterator[UdpHosts]:
    """n2 carries packets already, n1 has nothing yet."""
    n2 = UserPeer(hosts.n2, hosts.peer, hosts.own)
    try:
        yield hosts
    finally:
        n2.end()


async def test_pods_of_two_hosts_reach_each_other(scene: UdpHosts) -> None:
    cluster, own, peer = scene.cluster, scene.own, scene.peer
    async with cluster.dataplane() as running:
        status = await running.until(peers=1)
        assert (status.backend, status.mtu) == ("udp", 1472)
        assert status.backend_way == "in user space: the option Mode says so"
        assert await scene.answers()
        assert await scene.answers(back=True)
        assert await scene.answers(size=1472)
        assert not await scene.answers(size=1474, seconds=1)
        assert await scene.sends()
        assert await scene.sends(back=True)
        assert scene.lease(own) == '{"PublicIP":"10.99.0.11","PublicIPv6":null}'
        address = json.loads(cluster.ip("-j addr show flannel0"))[0]
        assert (address["mtu"], address["addr_info"][0]["local"]) == (1472, own.subnet)
        assert sorted(cluster.routes()) == [
            "10.5.0.0/16 dev flannel0 proto 77 scope link metric 2566",
            f"{own.cidr} dev cni0 proto kernel scope link src {own.gateway}",
            f"{peer.cidr} via {peer.public} dev flannel0 proto 77 metric 1334 onlink",
        ]
        (proxy,) = scene.proxies()
        for dry_run in (True, False):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await running.hand_over(dry_run=dry_run)
            assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "run `flannelette teardown`" in (refused.value.details() or "")
        assert await scene.answers()
        assert not (await running.teardown()).errors
        assert "flannel0" not in cluster.ip("link show")
        await eventually(scene.proxies, lambda seen: seen not in ([], [proxy]))
        assert "flannel0" not in cluster.ip("link show"), "the next proxy waits for the device"
        await running.resync()
        assert await scene.answers()


async def test_a_configuration_without_a_backend_takes_what_the_kernel_has(
    netns: NetworkNamespace, make_netns: NamespaceMaker
) -> None:
    with udp_hosts(netns, make_netns) as hosts:
        async with hosts.cluster.dataplane() as running:
            status = await running.until(peers=1)
            way = (
                "in the kernel: the kernel has FOU" if status.devices[0].name == "flannel.fou" else "in user space: "
            )
            assert status.backend_way.startswith(way)
            assert status.backend_way in str(await running.events())


async def test_mode_kernel_waits_for_the_module(netns: NetworkNamespace, make_netns: NamespaceMaker) -> None:
    if has_module("fou"):
        pytest.skip("this kernel has FOU")
    kernel = USER.replace('"user"', '"kernel"')
    with udp_hosts(netns, make_netns, kernel) as hosts:
        async with hosts.cluster.dataplane() as running, asyncio.timeout(PATIENCE):
            await eventually(running.reasons, contains("modprobe fou"))


async def test_a_packet_to_a_subnet_that_no_node_has_is_answered(scene: UdpHosts) -> None:
    async with scene.cluster.dataplane() as running:
        await running.until(peers=1)
        assert await scene.answers()
        program = (
            "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(20); "
            "s.setsockopt(0, 11, 1); s.connect(('10.5.200.1', 9)); s.send(b'x'); s.recv(1)"
        )
        done = await asyncio.to_thread(
            subprocess.run, scene.n1.command("python3", "-c", program), capture_output=True, text=True, check=False
        )
        assert "Network is unreachable" in done.stderr


async def test_a_dead_proxy_and_drift_are_repaired(scene: UdpHosts) -> None:
    cluster, own, peer = scene.cluster, scene.own, scene.peer
    async with cluster.dataplane() as running:
        await running.until(peers=1)
        assert await scene.answers()
        (proxy,) = scene.proxies()
        os.kill(proxy, signal.SIGKILL)
        await eventually(scene.proxies, lambda seen: seen not in ([], [proxy]))
        assert await scene.answers()
        for damage in (
            f"route del {peer.cidr} dev flannel0",
            "link set flannel0 down",
            f"addr del {own.subnet}/32 dev flannel0",
            "link del flannel0",
        ):
            cluster.ip(damage)
            assert await scene.answers()
        assert await scene.answers(back=True)


async def test_no_packet_is_lost_while_the_dataplane_is_stopped_or_killed_and_started(scene: UdpHosts) -> None:
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(scene.cluster.dataplane())
        await running.until(peers=1)
        assert await scene.answers()
        assert await scene.answers(back=True)
        before = scene.cluster.everything(details="")
        with scene.stream() as stream:
            async with stream:
                for number in (signal.SIGTERM, signal.SIGKILL):
                    (proxy,) = scene.proxies()
                    await running.end(number)
                    assert await scene.answers()
                    assert scene.proxies() == [proxy], "it carries on alone"
                    running = await stack.enter_async_context(scene.cluster.dataplane())
                    await running.until(peers=1)
                    await eventually(scene.proxies, has(1))
                    assert scene.proxies() != [proxy], "the new one has taken over"
                await eventually(lambda: stream.sent, lambda sent: sent > 100)
        assert stream.lost == []
        assert scene.cluster.everything(details="") == before


async def test_a_proxy_without_a_dataplane_ends_with_its_device(scene: UdpHosts) -> None:
    async with scene.cluster.dataplane() as running:
        await running.until(peers=1)
        await running.end()
    assert len(scene.proxies()) == 1
    scene.cluster.ip("link del flannel0")
    await eventually(scene.proxies, equals([]))


async def test_a_taken_port_is_told_and_used_as_soon_as_it_is_free(scene: UdpHosts) -> None:
    program = (
        "import socket, time; s = socket.socket(2, 2); s.bind(('10.99.0.11', 8285)); "
        "print(flush=True); time.sleep(1000)"
    )
    command = scene.n1.command("python3", "-c", program)
    thief = subprocess.Popen(command, stdout=subprocess.PIPE)  # noqa: ASYNC220 - it is started at once
    try:
        assert thief.stdout
        assert thief.stdout.readline(), "it has the port before the dataplane starts"
        async with scene.cluster.dataplane() as running, asyncio.timeout(PATIENCE):
            await eventually(running.reasons, contains("Address already in use"))
            thief.kill()
            thief.wait()
            await running.until(peers=1)
            assert await scene.answers()
    finally:
        thief.kill()
        thief.wait()


async def test_a_flanneld_on_the_other_node_and_in_our_place(hosts: UdpHosts) -> None:
    """Its device and its port go when it stops: the gap is the time from then until ours are there."""
    there, here = hosts.flanneld(hosts.n2, hosts.peer), hosts.flanneld(hosts.n1, hosts.own)
    try:
        await there.start(f"bootstrap done|Subnet added: {hosts.own.cidr}|Running backend")
        await here.start(f"Subnet added: {hosts.peer.cidr}")
        assert await hosts.answers()
        async with hosts.cluster.dataplane() as running:
            with hosts.stream() as stream:
                async with stream:
                    await running.until(ready=False, reasons=["cannot have flannel0: Device or resource busy"])
                    here.discard()
                    await running.until(peers=1)
                    assert await hosts.answers()
                    await asyncio.sleep(0.5)
            seconds = max((lost.sent for lost in stream.lost), default=0.0) - min(
                (lost.sent for lost in stream.lost), default=0.0
            )
            assert seconds < 5, f"the gap was {seconds:.2f} s"
            print(f"from flanneld: {len(stream.lost)} of {stream.sent} pings lost, in {seconds:.2f} s")
            assert await hosts.answers(size=1472)
            assert await hosts.answers(back=True)
            assert await hosts.sends()
            assert await hosts.sends(back=True)
            assert not (await running.teardown()).errors
            await running.end()
        await here.start(f"Subnet added: {hosts.peer.cidr}")
        assert await hosts.answers()
    finally:
        here.discard()
        there.discard()
