"""An underlay, devices, peers and a kernel that is a set, for the dataplane's tests; the captures' addresses."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from flannelette.services.core.family import IPV4, IPV6, family_of
from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData, lease_key
from flannelette.services.dataplane.backends.backend import NodeLinks
from flannelette.services.dataplane.backends.vxlan import Vxlan
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.kinds import text
from flannelette.services.dataplane.netlink.object_text import DeviceNames
from flannelette.services.dataplane.netlink.objects import KernelObject, Plan, Route
from flannelette.services.dataplane.underlay import Underlay
from tests.fakes import kernel as fakes

ETH0 = 2
FLANNEL = 3
FLANNEL_V6 = 4
NAMES = {ETH0: "eth0", FLANNEL: "flannel.1", FLANNEL_V6: "flannel-v6.1"}
UNDERLAY = Underlay(
    ETH0, "eth0", 1500, (ip_address("10.99.0.11"),), (ip_address("10.99.0.11"),), "has the default route"
)
DUAL_ADDRESSES = (ip_address("10.99.0.11"), ip_address("fd00:99::11"))
DUAL_UNDERLAY = Underlay(ETH0, "eth0", 1500, DUAL_ADDRESSES, DUAL_ADDRESSES, "has the default route")
DEVICE = Device("flannel.1", FLANNEL, "76:92:07:f7:74:5d", 1450, "flannel.1: vxlan")
DEVICE_V6 = Device("flannel-v6.1", FLANNEL_V6, "76:92:07:f7:74:5e", 1430, "flannel-v6.1: vxlan")
LINKS = NodeLinks(UNDERLAY, {IPV4: DEVICE}, 77)
DUAL_LINKS = NodeLinks(DUAL_UNDERLAY, {IPV4: DEVICE, IPV6: DEVICE_V6}, 77)
HOST_GW_LINKS = NodeLinks(UNDERLAY, {}, 77)


def subnet(cidr: str, public: str = "", mac: str = "", vni: int = 1) -> Subnet:
    return Subnet(ip_network(cidr), ip_address(public) if public else None, VxlanData(vni, mac) if mac else None)


def lease(*subnets: Subnet, node: str = "n2", kind: str = "vxlan") -> Lease:
    return Lease(lease_key(part.cidr for part in subnets), node, subnets, kind)


CAPTURED = {
    "n2": subnet("10.5.53.0/24", "10.99.0.12", "06:0c:56:6d:fb:b3"),
    "n4": subnet("10.5.82.0/24", "10.98.0.14", "32:97:99:5c:b1:6f"),
    "n3": subnet("10.5.97.0/24", "10.99.0.13", "0e:9d:40:24:9e:77"),
}
"""The peers of n1 in golden/vxlan/etcd.txt."""


def route(line: str, protocol: int = 3) -> Route:
    """`10.5.53.0/24 via 10.5.53.0 dev flannel.1 metric 4 onlink`; the words of iproute2, as many as here."""
    words = line.split()
    cidr = ip_network(words[0])
    given = dict(zip(words[1::2], words[2::2], strict=False))
    index = next((i for i, name in NAMES.items() if name == given.get("dev")), 99)
    return Route(
        cidr.network_address.packed,
        ip_address(given["via"]).packed if "via" in given else b"",
        int(given.get("metric", family_of(cidr).default_metric)),
        family_of(cidr).af,
        cidr.prefixlen,
        index,
        protocol,
        onlink="onlink" in words,
    )


def lines(objects: Iterable[KernelObject]) -> list[str]:
    """As iproute2 prints them, sorted."""
    return sorted(text(item, NAMES) for item in objects)


@dataclass
class FakeKernel(fakes.FakeKernel):
    """That knows the devices of here by name."""

    names: DeviceNames = field(default_factory=lambda: NAMES)


async def program(kernel: Actuator, peers: Iterable[Lease]) -> None:
    """Puts into a kernel what vxlan wants for these leases of peers."""
    objects = frozenset(o for each in peers for o in Vxlan().peer_objects(each.subnets, (), LINKS))
    await kernel.apply(Plan(objects, frozenset()))
