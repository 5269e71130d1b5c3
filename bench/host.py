"""A host of a bench's own: a network namespace with an underlay, and, if wanted, an empty VXLAN device."""

import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network, ip_network
from typing import Final

from bench.leases import NETWORK, OWN_ADDRESS, UNDERLAY, subnets
from bench.result import BenchFailed
from flannelette.services.core.family import IPV4
from flannelette.services.dataplane.backends.backend import NodeLinks
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.kernel.reconciler import OwnershipRules, Scope
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.underlay import Underlay
from lab.netns import NetworkNamespace

PROTOCOL: Final = 77
"""Protocol number of our routes."""
_OWN_SUBNET: Final = IPv4Network("10.0.0.0/24")
_SETTLING_SECONDS: Final = 0.7
"""The kernel takes a deleted namespace apart in the background, holding the lock (rtnl) that the next one needs."""
_EMPTY: Final = (
    "link add eth0 type veth peer far",
    "link set far up",
    "link set eth0 up",
    f"address add {OWN_ADDRESS}/{UNDERLAY.prefixlen} dev eth0",
)
_WITH_DEVICE: Final = (
    f"link add flannel.1 type vxlan id 1 dev eth0 local {OWN_ADDRESS} dstport 8472 nolearning",
    f"address add {_OWN_SUBNET[0]}/32 dev flannel.1",
    "link set flannel.1 up",
)


@contextmanager
def empty_host() -> Iterator[NetworkNamespace]:
    """One with the underlay `eth0`."""
    namespace = NetworkNamespace("bench")
    namespace.create()
    try:
        for line in _EMPTY:
            namespace.ip(*line.split())
        yield namespace
    finally:
        namespace.delete()
        time.sleep(_SETTLING_SECONDS)


@dataclass(frozen=True, slots=True)
class Host:
    """One with a device, on which the netlink part alone can be tried."""

    namespace: NetworkNamespace
    links: NodeLinks

    @property
    def scope(self) -> Scope:
        """Where the dataplane looks, and what is ours there."""
        devices = frozenset(device.index for device in self.links.devices.values())
        return Scope((IPV4,), OwnershipRules([NETWORK], [_OWN_SUBNET], devices, PROTOCOL))

    def objects(self, peers: int) -> frozenset[KernelObject]:
        """What our backend wants for the peers' leases."""
        backend = Vxlan()
        return frozenset(each for subnet in subnets(peers) for each in backend.peer_objects([subnet], (), self.links))


@contextmanager
def host_with_device() -> Iterator[Host]:
    """Makes a host with an empty VXLAN device, for a block."""
    with empty_host() as namespace:
        add_device(namespace)
        with namespace.inside():
            underlay = Underlay(socket.if_nametoindex("eth0"), "eth0", 1500, (OWN_ADDRESS,), (OWN_ADDRESS,), "")
            device = Device("flannel.1", socket.if_nametoindex("flannel.1"), "", 1450, "")
        yield Host(namespace, NodeLinks(underlay, {IPV4: device}, PROTOCOL))


def add_device(namespace: NetworkNamespace) -> None:
    """An empty VXLAN device `flannel.1`."""
    for line in _WITH_DEVICE:
        namespace.ip(*line.split())


def routes(namespace: NetworkNamespace, protocol: str = str(PROTOCOL)) -> set[bytes]:
    """Where the routes of a protocol lead there, packed."""
    found = json.loads(namespace.ip("-json", "route", "show", "proto", protocol))
    return {ip_network(route["dst"]).network_address.packed for route in found}


def check(who: str, namespace: NetworkNamespace, peers: int, protocol: str = str(PROTOCOL)) -> None:
    """Counts, with tools that are not ours, that everything is there. Raises BenchFailed."""
    found = {
        "routes": namespace.ip("-json", "route", "show", "proto", protocol),
        "neighbours": namespace.ip("-json", "neigh", "show", "dev", "flannel.1", "nud", "permanent"),
        "forwarding entries": namespace.run("bridge", "-json", "fdb", "show", "dev", "flannel.1"),
    }
    for what, text in found.items():
        if len(json.loads(text)) != peers:
            raise BenchFailed(f"{who} made {len(json.loads(text))} of {peers} {what}")
