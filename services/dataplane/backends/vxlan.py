"""VXLAN: every peer is a neighbour, a forwarding entry and a route on one device (flannel's `vxlan`)."""

import hashlib
from dataclasses import dataclass

from services.core.errors import InvalidInput
from services.core.family import IPV4, Family, family_of
from services.core.gojson import GoObject
from services.core.lease import BackendData, Subnet, VxlanData
from services.core.measures import LARGEST_MTU, SMALLEST_MTU
from services.dataplane.backends.backend import Device, DeviceSpec, Links, Unsuitable, VxlanDevice
from services.dataplane.backends.host_gw import direct_route
from services.dataplane.backends.metric import route_metric
from services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route
from services.dataplane.underlay import Underlay

_LINUX_PORT = 8472
"""Linux's own default (drivers/net/vxlan), older than IANA's 4789; flannel's `Port` 0."""


@dataclass(frozen=True, slots=True)
class Vxlan:
    """flannel's options of the same names."""

    vni: int = 1
    port: int = _LINUX_PORT
    parent_mtu: int = 0
    """Taken for the underlay's; 0: as it is."""
    learning: bool = False
    gbp: bool = False
    direct_routing: bool = False
    """A peer that is a neighbour is reached by a plain route, as in host-gw."""
    lease_type: str = "vxlan"
    shares_addresses: bool = False

    @property
    def follows_routes(self) -> bool:
        """With DirectRouting."""
        return self.direct_routing

    def device(self, family: Family, underlay: Underlay, node: str) -> DeviceSpec | None:
        """`flannel.<VNI>`, or `flannel-v6.<VNI>`; its MAC is stable over restarts and reboots of the node.

        Raises InvalidInput where the underlay leaves it less than IP needs.
        """
        name = f"flannel.{self.vni}" if family is IPV4 else f"flannel-v6.{self.vni}"
        mtu, least = self._device_mtu(family, underlay), SMALLEST_MTU[family.version]
        if mtu < least:
            raise InvalidInput(
                f"{underlay.name} has MTU {underlay.mtu}, of which VXLAN leaves {max(mtu, 0)} bytes for packets, and "
                f"{family} needs {least}: raise it, or choose another interface with --iface"
            )
        return VxlanDevice(
            name=name,
            vni=self.vni,
            port=self.port,
            parent=underlay.index,
            local=str(underlay.address(family)),
            mtu=mtu,
            learning=self.learning,
            gbp=self.gbp,
            mac=stable_mac(node, name),
        )

    def mtu(self, underlay: Underlay) -> int:
        """That of the first family's device. In dual stack it is IPv4's, as with flannel: IPv6 finds its own out."""
        return self._device_mtu(family_of(underlay.addresses[0]), underlay)

    def _device_mtu(self, family: Family, underlay: Underlay) -> int:
        """As flanneld's: it asks for 50 less than the option in both families, and the kernel grants what fits."""
        asked = (self.parent_mtu or underlay.mtu) - IPV4.vxlan_overhead
        return min(asked, underlay.mtu - family.vxlan_overhead)

    def warnings(self, underlay: Underlay) -> list[str]:
        """The option MTU, where it is more than there is."""
        if self.parent_mtu <= underlay.mtu:
            return []
        return [
            f"the backend's option MTU is {self.parent_mtu}, but {underlay.name} has {underlay.mtu}, which counts: "
            "take the option away, or raise the interface's MTU"
        ]

    def data(self, device: Device | None) -> BackendData | None:
        """VNI and MAC of the tunnel end point."""
        return VxlanData(self.vni, device.mac) if device else None

    def objects(self, family: Family, subnet: Subnet, links: Links) -> frozenset[KernelObject]:
        """Neighbour `subnet.ip -> MAC`, FDB entry `MAC -> public address`, route `subnet via subnet.ip onlink`.

        To a neighbour, with DirectRouting: the route `subnet via public address` alone. Both have one slot in the
        kernel, so that a peer changes from one to the other without a moment in between.
        """
        if not isinstance(subnet.data, VxlanData):
            raise Unsuitable("the lease has no VTEP MAC")
        if subnet.data.vni not in (self.vni, self.vni & 0xFFFF, 0):  # flannel publishes 16 bits of it, or none
            raise Unsuitable(f"the lease has VNI {subnet.data.vni}, this network {self.vni}")
        if subnet.public_address is None:
            raise Unsuitable(f"the lease has no public {family} address")
        if self.direct_routing and links.on_link.reaches(subnet.public_address):
            return frozenset([direct_route(family, subnet.cidr, subnet.public_address, links)])
        device = links.devices[family].index
        gateway = subnet.cidr.network_address.packed
        mac = bytes.fromhex(subnet.data.mac.replace(":", ""))
        return frozenset(
            (
                Neighbour(gateway, mac, family.af, device),
                FdbEntry(mac, subnet.public_address.packed, device),
                Route(
                    gateway,
                    gateway,
                    route_metric(subnet.cidr),
                    family.af,
                    subnet.cidr.prefixlen,
                    device,
                    links.route_protocol,
                    onlink=True,
                ),
            )
        )


def parse_vxlan(options: GoObject) -> tuple[Vxlan, list[str]]:
    """The backend, and nothing that it would not do. Raises InvalidInput, naming the option."""
    backend = Vxlan(
        vni=options.number("VNI", 1, most=2**24 - 1),
        port=options.number("Port", most=65535) or _LINUX_PORT,
        parent_mtu=options.number("MTU", most=LARGEST_MTU),
        learning=options.flag("Learning"),
        gbp=options.flag("GBP"),
        direct_routing=options.flag("DirectRouting"),
    )
    return backend, []


def stable_mac(node: str, device: str) -> str:
    """A locally administered unicast MAC (IEEE 802) that is a pure function of the node and the device."""
    digest = hashlib.sha256(f"flannelette {device} of {node}".encode()).digest()
    return ":".join(f"{byte:02x}" for byte in bytes([digest[0] & 0xFE | 0x02]) + digest[1:6])
