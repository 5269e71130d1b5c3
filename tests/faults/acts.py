"""What is done to a node to bring a fault about."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias

from tests.faults.scene import OnEtcd, Scene
from tests.waiting import eventually

Act: TypeAlias = Callable[[Scene], Coroutine[Any, Any, float]]
"""Returns the Unix time at which the fault was there."""


def typed(*lines: str) -> Act:
    """These commands on n1."""

    async def act(scene: Scene) -> float:
        at = time.time()
        await scene.n1(*lines)
        return at

    return act


async def lose_notifications(scene: Scene) -> float:
    """More happens than the kernel keeps to tell."""
    pair = "route add 203.0.113.7/32 dev lo proto 99\nroute del 203.0.113.7/32 dev lo proto 99\n"
    batch = scene.cluster.directory / "flood"
    batch.write_text(15_000 * pair)
    _, peer = scene.hosts.rows[0]
    scene.running.process.send_signal(signal.SIGSTOP)
    try:
        await scene.n1(f"ip -batch {batch}")  # several times what its queue holds
        at = time.time()
        await scene.n1(f"bridge fdb del {peer.mac} dev flannel.1 dst {peer.public}")
    finally:
        scene.running.process.send_signal(signal.SIGCONT)
    return at


async def recreate(scene: Scene) -> float:
    """The underlay's interface is deleted and made again."""
    await scene.n1("ip link del eth0")
    await scene.n1(f"ip link add eth0 type veth peer name eth0 netns {scene.hosts.n2.name}")
    await scene.n2("ip link set eth0 up", "ip addr add 10.99.0.12/16 dev eth0")
    await asyncio.to_thread(scene.hosts.make_peer)
    await scene.n1("ip link set eth0 up", "ip addr add 10.99.0.11/16 dev eth0")
    at = time.time()
    await scene.n1("ip route add default via 10.99.0.1")
    return at


async def renumber(scene: Scene) -> float:
    """The underlay has another address."""
    at = time.time()
    await scene.n1(
        "ip addr del 10.99.0.11/16 dev eth0",
        "ip addr add 10.99.0.21/16 dev eth0",
        "ip route add default via 10.99.0.1",
    )
    await scene.follow("10.99.0.21")
    return at


async def move_default_route(scene: Scene) -> float:
    """The default route goes to another interface."""
    await scene.n1(f"ip link add eth1 type veth peer name eth1 netns {scene.hosts.n2.name}")
    await scene.n2("ip link set eth1 up", "ip addr add 10.98.0.1/16 dev eth1")
    await scene.n1("ip link set eth1 up", "ip addr add 10.98.0.11/16 dev eth1")
    at = time.time()
    await scene.n1("ip route replace default via 10.98.0.1 dev eth1")
    await scene.follow("10.98.0.11")
    return at


async def lose_lease_service(scene: Scene) -> float:
    """It is away for two seconds."""
    at = time.time()
    scene.cluster.leases.kill()
    await asyncio.sleep(2)
    scene.cluster.leases = await asyncio.to_thread(scene.cluster.start_leases)
    return at


async def lose_store(scene: Scene) -> float:
    """Its etcd is away for two seconds."""
    assert isinstance(scene.cluster, OnEtcd)
    at = time.time()
    scene.cluster.etcd.kill()
    await eventually(scene.running.status, lambda status: not status.store_connected)
    await asyncio.sleep(2)
    await asyncio.to_thread(scene.cluster.etcd.start)
    return at


async def reboot(scene: Scene) -> float:
    """Nothing of the overlay is there, nor anybody who tells leases."""
    scene.cluster.leases.kill()
    await scene.running.end(signal.SIGTERM)
    await scene.n1("ip link del flannel.1")
    (scene.cluster.directory / "subnet.env").unlink()
    at = time.time()
    scene.running = await scene.start()
    await scene.running.status()
    return at


async def take_the_place(scene: Scene) -> float:
    """Somebody else's route is where ours was, and goes."""
    await scene.n1("ip route replace 10.5.53.0/24 via 10.99.0.12 metric 1334")
    await scene.running.until(peers=0)
    at = time.time()
    await scene.n1("ip route del 10.5.53.0/24 via 10.99.0.12")
    return at


def restarted(number: int) -> Act:
    """The dataplane ended by this signal, and started again."""

    async def act(scene: Scene) -> float:
        at = time.time()
        await scene.running.end(number)
        scene.running = await scene.start()
        return at

    return act
