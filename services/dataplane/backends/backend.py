"""What a backend is: pure answers about devices, leases and peers. Nothing here touches the kernel."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from services.core.family import Family
from services.core.lease import BackendData, Subnet
from services.dataplane.netlink.objects import KernelObject
from services.dataplane.netlink.uapi import LOOPBACK_IFINDEX
from services.dataplane.on_link import OnLink
from services.dataplane.underlay import Underlay


class Unsuitable(Exception):
    """A peer that this backend cannot carry; the message says why."""


@dataclass(frozen=True, slots=True)
class VxlanDevice:
    """A VXLAN device as it shall be."""

    name: str
    vni: int
    port: int
    parent: int
    """ifindex of the underlay interface."""
    local: str
    mtu: int
    learning: bool
    gbp: bool
    mac: str
    """For the case that it has to be made."""
    is_mac_published: bool = False
    """Peers know it, so that also an existing device gets it back; else one that fits keeps its own."""
    checksum_offload: bool | None = None
    """tx-checksum-ip-generic; None: as it is."""


DeviceSpec: TypeAlias = VxlanDevice


@dataclass(frozen=True, slots=True)
class Device:
    """A device of ours as it is in the kernel."""

    name: str
    index: int
    mac: str
    mtu: int
    description: str
    """In iproute2 notation."""


@dataclass(frozen=True, slots=True)
class Links:
    """Where objects go: the underlay, and the overlay device of each family (none for host-gw)."""

    underlay: Underlay
    devices: Mapping[Family, Device]
    route_protocol: int
    on_link: OnLink = OnLink()
    """Looked at only for a backend that `follows_routes`."""

    def names(self) -> dict[int, str]:
        """Interface names by index, for texts."""
        return {
            LOOPBACK_IFINDEX: "lo",
            self.underlay.index: self.underlay.name,
            **{d.index: d.name for d in self.devices.values()},
        }


class Backend(Protocol):
    """One way to carry the overlay. Every method is pure."""

    @property
    def lease_type(self) -> str:
        """The BackendType that leases carry; empty where flannel writes none."""
        ...

    @property
    def follows_routes(self) -> bool:
        """Whether `objects` depend on which addresses are neighbours."""
        ...

    @property
    def shares_addresses(self) -> bool:
        """Whether several nodes, behind one NAT say, may publish one address."""
        ...

    def device(self, family: Family, underlay: Underlay, node: str) -> DeviceSpec | None:
        """The device that a family needs; None: the underlay itself. Raises InvalidInput, Misconfigured."""
        ...

    def mtu(self, underlay: Underlay) -> int:
        """The MTU of pods, in bytes."""
        ...

    def warnings(self, underlay: Underlay) -> list[str]:
        """What the options ask for and the underlay does not give."""
        ...

    def data(self, device: Device | None) -> BackendData | None:
        """What the own lease publishes in the family of this device."""
        ...

    def objects(self, family: Family, subnet: Subnet, links: Links) -> frozenset[KernelObject]:
        """The kernel objects that carry a peer's subnet. Raises Unsuitable."""
        ...
