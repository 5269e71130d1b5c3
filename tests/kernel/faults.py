"""What can go wrong with a node, one row each: the act, what the kernel makes of it, and what we do."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2

from tests.etcd import EtcdServer
from tests.kernel.dataplane_host import Cluster, Running
from tests.kernel.two_hosts import TwoHosts
from tests.lease_service import ServiceProcess
from tests.patience import PATIENCE

REPAIR: Final = pb.EVENT_KIND_REPAIR
UNDERLAY: Final = pb.EVENT_KIND_UNDERLAY
DEVICE: Final = pb.EVENT_KIND_DEVICE


class OnEtcd(Cluster):
    """Its lease service has the leases in an etcd of its own."""

    def start_leases(self) -> ServiceProcess:
        self.etcd = EtcdServer(self.directory)
        self.etcd.start()
        self.etcd.etcdctl("put", "/coreos.com/network/config", self.network_file.read_text())
        return ServiceProcess(self.directory, "--store=etcd", "--central", f"--etcd-endpoints={self.etcd.endpoint}")


class Scene:
    """n1 with a dataplane, and n2, whose part the test plays."""

    def __init__(self, hosts: TwoHosts, start: Callable[[], Awaitable[Running]], running: Running) -> None:
        self.hosts = hosts
        self.cluster = hosts.cluster
        self.start = start
        self.running = running

    async def n1(self, *lines: str) -> None:
        """Runs these commands on n1."""
        for line in lines:
            await asyncio.to_thread(self.cluster.run, line)

    async def n2(self, *lines: str) -> None:
        """Runs these commands on n2."""
        for line in lines:
            await asyncio.to_thread(self.hosts.n2.run, *line.split())

    async def follow(self, address: str) -> None:
        """n2 does as a peer does once n1's lease has this address."""
        own, _ = self.hosts.rows[0]
        async with asyncio.timeout(PATIENCE), self.cluster.calls() as stub:
            request = lease_pb2.ListLeasesRequest(node="n1")
            while address not in str(await stub.ListLeases(request)):  # noqa: ASYNC110 - another process decides
                await asyncio.sleep(0.02)
        await self.n2(f"bridge fdb replace {own.mac} dev {own.device} dst {address} self permanent")


Act: TypeAlias = Callable[[Scene], Coroutine[Any, Any, float]]
"""Returns the Unix time at which the fault was there."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A row of the table in docs/operations.md."""

    what: str
    kernel: str
    ours: str
    act: Act
    told: tuple["pb.EventKind.ValueType", ...] = (REPAIR,)
    """The journal has an event of one of these kinds when it is mended; empty: nothing is to be mended."""
    store: str = "embedded"
    remembers: bool = False
    """It is mended when what the node remembers is in force: nobody tells any leases."""


def _typed(*lines: str) -> Act:
    async def act(scene: Scene) -> float:
        at = time.time()
        await scene.n1(*lines)
        return at

    return act


async def _lose_notifications(scene: Scene) -> float:
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


async def _recreate(scene: Scene) -> float:
    await scene.n1("ip link del eth0")
    await scene.n1(f"ip link add eth0 type veth peer name eth0 netns {scene.hosts.n2.name}")
    await scene.n2("ip link set eth0 up", "ip addr add 10.99.0.12/16 dev eth0")
    await asyncio.to_thread(scene.hosts.make_peer)
    await scene.n1("ip link set eth0 up", "ip addr add 10.99.0.11/16 dev eth0")
    at = time.time()
    await scene.n1("ip route add default via 10.99.0.1")
    return at


async def _renumber(scene: Scene) -> float:
    at = time.time()
    await scene.n1(
        "ip addr del 10.99.0.11/16 dev eth0",
        "ip addr add 10.99.0.21/16 dev eth0",
        "ip route add default via 10.99.0.1",
    )
    await scene.follow("10.99.0.21")
    return at


async def _move_default_route(scene: Scene) -> float:
    await scene.n1(f"ip link add eth1 type veth peer name eth1 netns {scene.hosts.n2.name}")
    await scene.n2("ip link set eth1 up", "ip addr add 10.98.0.1/16 dev eth1")
    await scene.n1("ip link set eth1 up", "ip addr add 10.98.0.11/16 dev eth1")
    at = time.time()
    await scene.n1("ip route replace default via 10.98.0.1 dev eth1")
    await scene.follow("10.98.0.11")
    return at


async def _lose_lease_service(scene: Scene) -> float:
    at = time.time()
    scene.cluster.leases.kill()
    await asyncio.sleep(2)
    scene.cluster.leases = await asyncio.to_thread(scene.cluster.start_leases)
    return at


async def _lose_store(scene: Scene) -> float:
    assert isinstance(scene.cluster, OnEtcd)
    at = time.time()
    scene.cluster.etcd.kill()
    async with asyncio.timeout(20):
        while (await scene.running.status()).store_connected:  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.02)
    await asyncio.sleep(2)
    await asyncio.to_thread(scene.cluster.etcd.start)
    return at


async def _reboot(scene: Scene) -> float:
    scene.cluster.leases.kill()
    await scene.running.end(signal.SIGTERM)
    await scene.n1("ip link del flannel.1")
    (scene.cluster.directory / "subnet.env").unlink()
    at = time.time()
    scene.running = await scene.start()
    await scene.running.status()
    return at


async def _take_the_place(scene: Scene) -> float:
    await scene.n1("ip route replace 10.5.53.0/24 via 10.99.0.12 metric 1334")
    await scene.running.until(peers=0)
    at = time.time()
    await scene.n1("ip route del 10.5.53.0/24 via 10.99.0.12")
    return at


async def _move_device(scene: Scene) -> float:
    at = time.time()
    await scene.n1(f"ip link set flannel.1 netns {scene.hosts.n2.name} name moved0")
    return at


def _restarted(number: int) -> Act:
    async def act(scene: Scene) -> float:
        at = time.time()
        await scene.running.end(number)
        scene.running = await scene.start()
        return at

    return act


FAULTS: Final = {
    "link-down": Fault(
        "`ip link set flannel.1 down`",
        "removes routes and neighbours, the own address stays",
        "set up, all put back",
        _typed("ip link set flannel.1 down"),
    ),
    "device-deleted": Fault(
        "`ip link del flannel.1`",
        "removes everything on it",
        "made again with the MAC that peers know, all put back",
        _typed("ip link del flannel.1"),
    ),
    "device-moved": Fault(
        "`ip link set flannel.1 netns` (another network namespace)",
        "takes everything off it, and keeps its VNI and port taken here",
        "deleted there, made again here with the MAC that peers know, all put back",
        _move_device,
    ),
    "route-flush": Fault(
        "`ip route flush proto 77`", "removes the routes", "put back", _typed("ip route flush proto 77")
    ),
    "route-replaced": Fault(
        "somebody else's route in the very place of ours, from the time it goes",
        "goes by that route, and has none once it is gone",
        "said in the status while it is there, then put back",
        _take_the_place,
    ),
    "fdb-deleted": Fault(
        "`bridge fdb del`",
        "removes where a peer's frames go",
        "put back",
        _typed("bridge fdb del 06:0c:56:6d:fb:b3 dev flannel.1 dst 10.99.0.12"),
    ),
    "neighbours-flushed": Fault(
        "`ip neigh flush`",
        "removes the peers' MACs",
        "put back",
        _typed("ip neigh flush dev flannel.1 nud permanent"),
    ),
    "address-removed": Fault(
        "`ip addr del` on flannel.1",
        "removes the own address, and with the last one all IPv4 routes of the device",
        "put back",
        _typed("ip addr del 10.5.27.0/32 dev flannel.1"),
    ),
    "device-in-a-bridge": Fault(
        "`ip link set flannel.1 master` (a bridge)",
        "gives the bridge what comes",
        "taken out again",
        _typed("ip link set flannel.1 master cni0"),
    ),
    "device-mtu": Fault(
        "`ip link set flannel.1 mtu`", "fragments or drops", "set back", _typed("ip link set flannel.1 mtu 1280")
    ),
    "notifications-lost": Fault(
        "a flood of route changes (ENOBUFS), and a forwarding entry deleted in it",
        "drops what it would have told",
        "everything compared, what is missing put back",
        _lose_notifications,
    ),
    "underlay-recreated": Fault(
        "the underlay's interface deleted and made again",
        "deletes the overlay's device along",
        "chosen again by its new index, all made again",
        _recreate,
        (REPAIR, DEVICE),
    ),
    "underlay-renumbered": Fault(
        "the underlay's address replaced by another",
        "sends from no address that peers know",
        "device made anew, the lease updated with its subnet kept; peers follow",
        _renumber,
        (UNDERLAY,),
    ),
    "underlay-mtu": Fault(
        "the underlay's MTU lowered",
        "fragments or drops what is too large",
        "MTU of the device and in `subnet.env` lowered; running pods keep theirs",
        _typed("ip link set eth0 mtu 1400"),
        (DEVICE, REPAIR),
    ),
    "default-route-moved": Fault(
        "the default route moved to another interface",
        "nothing",
        "underlay chosen again, device made anew, the lease updated; peers follow",
        _move_default_route,
        (UNDERLAY,),
    ),
    "lease-service-away": Fault(
        "the lease service killed, back after 2 s",
        "nothing",
        "the last leases stay in force",
        _lose_lease_service,
        (),
    ),
    "store-away": Fault(
        "the store (etcd) killed, back after 2 s",
        "nothing",
        "the last leases stay in force",
        _lose_store,
        (),
        store="etcd",
    ),
    "reboot-in-an-outage": Fault(
        "a reboot while the lease service is away, from the start of the dataplane on",
        "has nothing of the overlay any more",
        "made again by what the node remembers",
        _reboot,
        (pb.EVENT_KIND_RESYNC,),
        remembers=True,
    ),
    "killed": Fault(
        "the dataplane killed with `kill -9`, started again",
        "nothing",
        "what is there is found and kept",
        _restarted(signal.SIGKILL),
        (),
    ),
    "restarted": Fault(
        "the dataplane stopped, started again",
        "nothing",
        "what is there is found and kept",
        _restarted(signal.SIGTERM),
        (),
    ),
}
