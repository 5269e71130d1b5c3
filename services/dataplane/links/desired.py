"""An overlay device as the node needs it, and the protocol that describes a kind of link (VXLAN, IPIP, ...)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Interface, IPv6Interface, ip_interface
from typing import Any, ClassVar, Final, Protocol, Self, TypeAlias

from flannelette.services.core.family import Family, Network

InterfaceAddress: TypeAlias = IPv4Interface | IPv6Interface


@dataclass(frozen=True, slots=True)
class LinkEdit:
    """A change of a link's own attributes in place. Empty: no change is needed."""

    words: str = ""
    """What follows `ip link set NAME type KIND`."""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    """The attributes that change, as `LinkKind.encode` names them."""


TUN: Final = "tun"
"""The kind of devices whose packets a process carries."""


class LinkKind(Protocol):
    """The attributes of one kind of link, and the codec between them, netlink and iproute2's words.

    Each kind is a frozen dataclass, in the file of the backend that needs it. Links of equal attributes do the same.
    """

    kind: ClassVar[str]
    """The kernel's name of the kind, as in `ip link add NAME type KIND`."""
    instead: ClassVar[str]
    """The backend that does without links of this kind, for a kernel that has none."""
    offloads_checksums: ClassVar[bool]
    """Whether --checksum-offload is about links of this kind."""

    def encode(self) -> dict[str, Any]:
        """The attributes for netlink, by pyroute2's names without the kind: `{"id": 1, "port": 8472}`."""
        ...

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """The attributes of a link of this kind in the kernel: the inverse of `encode`."""
        ...

    def text(self, parent: str = "") -> str:
        """The attributes as `ip link add` takes them; `parent`: the underlay's interface, empty: not shown."""
        ...

    def edit(self, wanted: Self) -> LinkEdit | None:
        """What turns this link into the wanted one in place; None: it has to be deleted and created again."""
        ...

    def excludes(self, wanted: Self) -> bool:
        """Whether the kernel refuses the wanted link while this one is there."""
        ...

    def identity(self) -> str:
        """What no two links of this kind may share, in words: `VNI 1 and port 8472`."""
        ...

    def is_named(self, name: str) -> bool:
        """Whether flannel and this service give a link with these attributes this name."""
        ...


@dataclass(frozen=True, slots=True)
class BareLink:
    """What LinkKinds without attributes have in common: any device of the kind can stay."""

    offloads_checksums: ClassVar[bool] = False

    def encode(self) -> dict[str, Any]:
        """See LinkKind."""
        return {}

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """See LinkKind."""
        return cls()

    def text(self, parent: str = "") -> str:
        """See LinkKind."""
        return ""

    def edit(self, wanted: Self) -> LinkEdit | None:
        """See LinkKind."""
        return LinkEdit()


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """The overlay device that one address family needs."""

    name: str
    family: Family
    attributes: LinkKind
    parent: str
    """Name of the underlay's interface."""
    mtu: int
    mac: str = ""
    """MAC for a device that has to be created; empty: links of this kind have none."""
    is_mac_published: bool = False
    """Peers know the MAC, so an existing device is given it too; otherwise a device that matches keeps its own."""
    address: InterfaceAddress | None = None
    """Address of the device; None: not known yet, addresses stay as they are."""
    network: Network | None = None
    """The overlay in this family: other addresses inside are removed."""
    former: frozenset[InterfaceAddress] = frozenset()
    """Addresses that were the node's own, maybe in another network: they are removed too."""
    checksum_offload: bool | None = None
    """tx-checksum-ip-generic; None: left as it is."""
    earlier_name: str = ""
    """Only a device of this name becomes this one, of those that an earlier process has left; empty: any."""


@dataclass(frozen=True, slots=True)
class Device:
    """An overlay device as it is in the kernel."""

    name: str
    index: int
    mac: str
    """Empty: links of its kind have none."""
    mtu: int
    description: str
    """The device in iproute2 notation."""


def own_address(subnet: Network) -> InterfaceAddress:
    """The address that an overlay device has of the node's subnet: its network address, alone (/32 or /128)."""
    return ip_interface((subnet.network_address, subnet.max_prefixlen))
