"""A host in a fresh namespace, with an underlay and a VXLAN device of each family."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from flannelette.services.core.family import IPV4, Family
from flannelette.services.dataplane.netlink.kernel import KernelSocket
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route, plan
from flannelette.services.dataplane.netlink.raw_socket import QUEUE_BYTES, RawTransport
from tests.hosts.namespaces import NetworkNamespace
from tests.waiting import eventually_sync

PROTOCOL = 77
DEVICES = {4: "flannel.1", 6: "flannel-v6.1"}
_UNDERLAY = {4: "10.99.0.1", 6: "fd00:99::1"}


@dataclass(frozen=True)
class Host:
    namespace: NetworkNamespace
    names: dict[int, str]

    @classmethod
    def make(cls, namespace: NetworkNamespace) -> "Host":
        def up(name: str) -> None:  # without a link-local address, which the kernel would add and tell a little later
            namespace.ip("link", "set", name, "addrgenmode", "none", "up")

        namespace.ip("link", "add", "eth0", "type", "veth", "peer", "far")
        for name in ("eth0", "far"):
            up(name)
        namespace.ip("address", "add", "10.99.0.1/16", "dev", "eth0")
        namespace.ip("address", "add", "fd00:99::1/64", "dev", "eth0")
        for number, (version, name) in enumerate(DEVICES.items(), start=1):
            local = ("local", _UNDERLAY[version], "dev", "eth0", "dstport", "8472", "nolearning")
            namespace.ip("link", "add", name, "type", "vxlan", "id", str(number), *local)
            up(name)
        _until_told(namespace, carriers=2)
        with namespace.inside():
            return cls(namespace, dict(socket.if_nameindex()))

    def device(self, family: Family) -> int:
        return next(index for index, name in self.names.items() if name == DEVICES[family.version])

    @property
    def underlay(self) -> int:
        return next(index for index, name in self.names.items() if name == "eth0")

    @contextmanager
    def kernel(self, queue_bytes: int = QUEUE_BYTES) -> Iterator[KernelSocket]:
        with self.namespace.inside():
            opened = KernelSocket(RawTransport(queue_bytes=queue_bytes))
        with opened:
            yield opened

    def peer(self, family: Family, number: int, mac: bytes | None = None) -> frozenset[KernelObject]:
        """Neighbour, forwarding entry and route of the peer that has subnet `number`."""
        device = self.device(family)
        subnet = subnet_address(family, number)
        mac = mac or b"\2\0" + number.to_bytes(4)
        public = self.public_address(family, number)
        length = 24 if family is IPV4 else 64
        return frozenset(
            (
                Neighbour(subnet, mac, family.af, device),
                FdbEntry(mac, public, device),
                Route(subnet, subnet, 1 + number, family.af, length, device, PROTOCOL, onlink=True),
            )
        )

    def public_address(self, family: Family, number: int) -> bytes:
        """Of that peer."""
        if family is IPV4:
            return bytes((10, 99)) + number.to_bytes(2)
        return bytes.fromhex("fd000099") + number.to_bytes(12)

    def peers(self, family: Family, count: int) -> frozenset[KernelObject]:
        return frozenset(each for number in range(2, 2 + count) for each in self.peer(family, number))


def _until_told(namespace: NetworkNamespace, carriers: int) -> None:
    """Waits until the kernel has told of so many links' carriers, and of every address.

    It does both in work of its own, a moment after the command; on a busy machine seconds after it.
    """
    eventually_sync(lambda: namespace.ip("-o", "link"), lambda links: links.count("state UP") == carriers)
    eventually_sync(lambda: namespace.ip("-o", "address", "show", "tentative"), lambda addresses: not addresses)
    namespace.ip("link", "set", "lo", "up")  # changes nothing, and waits for the lock under which it tells


def subnet_address(family: Family, number: int) -> bytes:
    """10.5.N.0 and on from there, or fd00:10:5:N::."""
    if family is IPV4:
        return (int.from_bytes(bytes((10, 5, 0, 0))) + (number << 8)).to_bytes(4)
    return bytes.fromhex("fd0000100005") + number.to_bytes(2) + bytes(8)


async def on_device(kernel: KernelSocket, family: Family, device: int) -> frozenset[KernelObject]:
    """What the kernel holds of ours: routes by their protocol, everything else by its device."""
    routes = await kernel.routes(family.af, protocol=PROTOCOL)
    return routes | (await kernel.contents([family.af], [device])).on_devices


async def bring(kernel: KernelSocket, family: Family, device: int, desired: frozenset[KernelObject]) -> int:
    """Dump, plan, apply; returns how many objects the plan touched."""
    change = plan(await on_device(kernel, family, device), desired)
    assert await kernel.apply(change) == {}
    return len(change)


@pytest.fixture
def vxlan_host(netns: NetworkNamespace) -> Host:
    """A host, fresh."""
    return Host.make(netns)
