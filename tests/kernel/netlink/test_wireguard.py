"""WireGuard's actuator on a real kernel: what was put is dumped, drift is a difference, sessions live on."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Final

import pytest

from flannelette.services.core.backend_types import Secret
from flannelette.services.core.family import IPV4, IPV6
from flannelette.services.dataplane.backends.backend import NodeLinks, device_route
from flannelette.services.dataplane.backends.wireguard import public_key
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.netlink.actuator import CombinedActuator
from flannelette.services.dataplane.netlink.kernel import KernelSocket
from flannelette.services.dataplane.netlink.objects import (
    KernelObject,
    Plan,
    Route,
    WireguardDevice,
    WireguardPeer,
    plan,
)
from flannelette.services.dataplane.netlink.wireguard import WireguardSocket
from lab.pings import Pinger
from tests.examples.dataplane import DUAL_UNDERLAY
from tests.hosts.namespaces import NamespaceMaker, NetworkNamespace
from tests.patience import PATIENCE

pytestmark = pytest.mark.modules("wireguard")
DEVICE: Final = "flannel-wg"
PSK: Final = Secret(bytes(range(32)))


@dataclass
class WireguardHost:
    """A host with a device, and the actuator there."""

    namespace: NetworkNamespace
    number: int
    kernel: CombinedActuator

    @property
    def private(self) -> Secret:
        return Secret(bytes([8 * self.number, *range(1, 31), 64]))

    @property
    def address(self) -> bytes:
        return bytes((10, 99, 0, self.number))

    @property
    def index(self) -> int:
        with self.namespace.inside():
            return int(self.namespace.ip("-o", "link", "show", DEVICE).partition(":")[0])

    def make_device(self) -> None:
        for words in (f"link add {DEVICE} mtu 1420 type wireguard", f"link set {DEVICE} up"):
            self.namespace.ip(*words.split())
        self.namespace.ip(*f"addr add 10.5.{self.number}.0/32 dev {DEVICE}".split())

    def device(self) -> WireguardDevice:
        return WireguardDevice(public_key(self.private), self.private, 51820, 0, self.index)

    def peer(self, index: int) -> WireguardPeer:
        """This host, as a peer on the device with this index."""
        allowed = ((bytes((10, 5, self.number, 0)), 24),)
        return WireguardPeer(public_key(self.private), allowed, self.address, 51820, PSK, 0, index)

    def desired(self, *peers: "WireguardHost") -> frozenset[KernelObject]:
        links = NodeLinks(DUAL_UNDERLAY, {IPV4: Device(DEVICE, self.index, "", 1420, "")}, 77)
        routes = (device_route(IPV4, ip_network(f"10.5.{each.number}.0/24"), links) for each in peers)
        return frozenset([self.device(), *(each.peer(self.index) for each in peers), *routes])

    async def actual(self, desired: frozenset[KernelObject] = frozenset()) -> frozenset[KernelObject]:
        found = await self.kernel.contents([IPV4.af, IPV6.af], [self.index], desired)
        return found.on_devices | {route for route in found.routes if route.protocol == 77}

    async def program(self, *peers: "WireguardHost") -> Plan[KernelObject]:
        """Brings the kernel to it; what had to be done."""
        desired = self.desired(*peers)
        todo = plan(await self.actual(desired), desired)
        assert await self.kernel.apply(todo) == {}
        return todo

    def wg(self, *words: str) -> str:
        return self.namespace.run("wg", *words)

    async def ping(self, number: int) -> bool:
        with Pinger(self.namespace, 4) as pinger:
            _, seconds = await pinger.ping(ip_address(f"10.5.{number}.0"), 1.0)
        return seconds is not None

    async def reaches(self, number: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while not await self.ping(number):
                pass

    def last_handshake(self) -> int:
        return int(self.wg("show", DEVICE, "latest-handshakes").split()[-1])


@contextmanager
def actuators(namespace: NetworkNamespace) -> Iterator[CombinedActuator]:
    with namespace.inside():
        rtnetlink, beside = KernelSocket(), WireguardSocket()
    with rtnetlink, beside:
        yield CombinedActuator(rtnetlink, [beside])


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            if await asyncio.to_thread(is_so):
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def two(make_netns: NamespaceMaker) -> AsyncIterator[tuple[WireguardHost, WireguardHost]]:
    """Hosts 1 and 2 on one underlay, each programmed with the other as its peer."""
    first, second = make_netns(), make_netns()
    make_netns.connect(first, "10.99.0.1/16", second, "10.99.0.2/16")
    with actuators(first) as kernel1, actuators(second) as kernel2:
        n1, n2 = WireguardHost(first, 1, kernel1), WireguardHost(second, 2, kernel2)
        for host in (n1, n2):
            host.make_device()
        yield n1, n2


async def test_peers_that_were_put_are_dumped_and_carry_packets(make_netns: NamespaceMaker) -> None:
    async with two(make_netns) as (n1, n2):
        for host, peer in ((n1, n2), (n2, n1)):
            assert await host.actual() == frozenset(), "a device without a key has nothing of ours"
            await host.program(peer)
            assert await host.actual() == host.desired(peer)
            assert len(await host.program(peer)) == 0
        await n1.reaches(2)
        assert (await n1.kernel.contents([], [n1.index])).faults == {}
        (state,) = (await n1.kernel.contents([], [n1.index])).states.values()
        assert "endpoint: 10.99.0.2:51820, latest handshake: " in str(state)
        shown = n1.wg("show", DEVICE, "dump")
        assert shown.split()[:3:2] == [b64encode(n1.private).decode(), "51820"]

        # drift, of each object and each part of it
        key = b64encode(public_key(n2.private)).decode()
        for damage in (
            f"set {DEVICE} listen-port 4000",
            f"set {DEVICE} fwmark 0x7",
            f"set {DEVICE} peer {key} remove",
            f"set {DEVICE} peer {key} allowed-ips 10.5.99.0/24",
            f"set {DEVICE} peer {key} persistent-keepalive 9",
            f"set {DEVICE} peer {key} preshared-key /dev/null",
            f"set {DEVICE} peer {b64encode(bytes(range(9, 41))).decode()} allowed-ips 10.5.2.0/24",
        ):
            n1.wg(*damage.split())
            todo = await n1.program(n2)
            assert len(todo) > 0, damage
            assert await n1.actual() == n1.desired(n2), damage
        await n1.reaches(2)

        # an endpoint that the peer roamed to is kept, one without a session is not
        n2.wg("set", DEVICE, "listen-port", "51999")
        await n2.reaches(1)
        assert n1.wg("show", DEVICE, "endpoints").split()[-1] == "10.99.0.2:51999"
        assert len(await n1.program(n2)) == 0
        with actuators(n1.namespace) as again:
            restarted = WireguardHost(n1.namespace, 1, again)
            assert len(await restarted.program(n2)) == 0
            assert n1.wg("show", DEVICE, "endpoints").split()[-1] == "10.99.0.2:51999", "also by a new process"
        n2.wg("set", DEVICE, "listen-port", "51820")
        await n2.reaches(1)

        # a link that was down has lost routes and sessions: a packet brings the session back
        before = n1.last_handshake()
        await asyncio.sleep(1.1)  # handshakes are told in seconds
        n1.namespace.ip("link", "set", DEVICE, "down")
        n1.namespace.ip("link", "set", DEVICE, "up")
        todo = await n1.program(n2)
        assert [type(each) for each in todo.put] == [Route]
        await until(lambda: n1.last_handshake() != before)
        assert await n2.ping(1), "and the peer has it too"

        # a device that is made again gets its key and its peers, and greets them
        n1.namespace.ip("link", "del", DEVICE)
        n1.make_device()
        await n1.program(n2)
        await until(lambda: n1.last_handshake() != 0)
        assert await n2.ping(1)

        # removal
        await n1.program()
        assert n1.wg("show", DEVICE, "peers") == ""


async def test_a_port_that_is_taken_and_a_peer_that_never_answers_are_told(make_netns: NamespaceMaker) -> None:
    async with two(make_netns) as (n1, n2):
        n1.namespace.ip(*"link add wg9 type wireguard".split())
        n1.namespace.ip(*"link set wg9 up".split())
        n1.wg("set", "wg9", "listen-port", "51820")
        desired = n1.desired(n2)
        failed = await n1.kernel.apply(plan(await n1.actual(), desired))
        assert list(failed.values()) == [
            "UDP port 51820 is taken: `ss -lunp` says by whom; end that program, or change ListenPort"
        ]
        n1.wg("set", "wg9", "listen-port", "51999")
        await n1.program(n2)  # which has no key yet, and answers nothing
        await n1.ping(2)
        await asyncio.sleep(16)  # by then every peer has answered
        ((_, reason),) = (await n1.kernel.contents([], [n1.index])).faults.items()
        assert reason.startswith("no WireGuard handshake with 10.99.0.2:51820 succeeds (latest handshake: none)")
        await n2.program(n1)
        await n2.reaches(1)
        assert (await n1.kernel.contents([], [n1.index])).faults == {}
