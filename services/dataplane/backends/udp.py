"""udp: IPv4 packets in UDP datagrams, through a TUN device or the kernel's FOU (flannel's `udp`). IPv4 only.

The datagrams are the same both ways. In user space a process carries them, and each packet passes it; in the kernel
a tunnel device does.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any, ClassVar, Final, Self

from flannelette.services.core.backend_types import FOU_DEVICE, UDP_DEVICE, UdpOptions
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4, Family, Network, family_of
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.backends.backend import (
    Backend,
    Host,
    NodeFiles,
    NodeIdentity,
    NodeLinks,
    Programs,
    device_route,
    require_room,
    tunnel_route,
)
from flannelette.services.dataplane.backends.ipip import IpipLink
from flannelette.services.dataplane.links.desired import TUN, BareLink, LinkKind, LinkSpec, own_address
from flannelette.services.dataplane.netlink.fou.ports import FouPorts, watch_port
from flannelette.services.dataplane.netlink.fou.values import ENCAP_FOU, FouPort
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.udp.supervisor import keep_running
from flannelette.services.dataplane.underlay import Underlay

_OVERHEAD: Final = 28
"""Bytes: the outer IPv4 and UDP headers."""
_IPIP: Final = 4
_WITHIN_THE_HOST: Final = frozenset(("veth", "bridge", "macvlan", "ipvlan"))
"""Kinds of interfaces that hand packets to other namespaces as they are."""


@dataclass(frozen=True, slots=True)
class TunLink(BareLink):
    """A TUN device; what it has of its own (owner, queues) is left to whoever has it open."""

    is_persistent: bool = True
    """The device stays when no process has it open. A flanneld's does not, and is never ours."""
    kind: ClassVar[str] = TUN
    instead: ClassVar[str] = "vxlan"

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> Self:
        """See LinkKind."""
        return cls(bool(data.get("persist", True)))

    def excludes(self, wanted: Self) -> bool:
        """Many may be there."""
        return False

    def identity(self) -> str:
        """None may not be shared."""
        return "nothing"

    def is_named(self, name: str) -> bool:
        """See LinkKind."""
        return UDP_DEVICE.is_one(name) and self.is_persistent


@dataclass(frozen=True, slots=True)
class FouLink(IpipLink):
    """An IPIP device that puts a UDP header before each packet, from and to the port of the FOU port beside it."""

    instead: ClassVar[str] = 'udp with the option "Mode": "user"'
    offloads_checksums: ClassVar[bool] = True

    def encode(self) -> dict[str, Any]:
        """See LinkKind."""
        ports = {"encap_flags": self.encap_flags, "encap_sport": self.encap_sport, "encap_dport": self.encap_dport}
        return IpipLink.encode(self) | {"proto": _IPIP} | ports

    def text(self, parent: str = "") -> str:
        """`local 10.99.0.11 ttl inherit nopmtudisc encap fou encap-sport 8285 encap-dport 8285`."""
        plain = IpipLink.text(replace(self, encap_type=0), parent)
        encap = "fou" if self.encap_type == ENCAP_FOU else self.encap_type or "none"
        return f"{plain} encap {encap} encap-sport {self.encap_sport} encap-dport {self.encap_dport}"

    def is_named(self, name: str) -> bool:
        """See LinkKind."""
        return name == FOU_DEVICE


@dataclass(frozen=True)
class Udp(UdpOptions, Backend):
    """One device, in the kernel or of a process, and a route to each peer's subnet."""

    is_in_kernel: bool = False
    """Whether the kernel's FOU carries the packets, not a TUN device; chosen by `prepare`."""
    reason: str = ""
    """Why `prepare` has chosen so, in words."""
    suffix: str = ""
    """The network's; see NodeFiles."""
    lease_type: ClassVar[str] = ""
    hand_over_obstacle: ClassVar[str] = (
        "a flanneld with backend udp does not start while device and port of this one are there: run `flannelette "
        "teardown`, stop the dataplane, then start flanneld (docs/migration.md#backend-udp)"
    )
    link_kinds: ClassVar[tuple[type[LinkKind], ...]] = (TunLink, FouLink)
    numbers_devices: ClassVar[bool] = True

    @property
    def carrier(self) -> str:
        """See Backend."""
        return f"UDP port {self.port}"

    @property
    def works_by_task(self) -> bool:
        """See Backend."""
        return not self.is_in_kernel

    def on_node(self, files: NodeFiles) -> Self:
        """Returns the backend with the network's own device in user space."""
        return replace(self, suffix=files.suffix)

    async def prepare(self, network: NetworkConfig, programs: Programs | None) -> Self:
        """Chooses the way by what the kernel has."""
        if self.mode == "user":
            return replace(self, reason="the option Mode says so")
        with FouPorts() as kernel:
            obstacle = await kernel.obstacle()
        if obstacle and self.mode == "kernel":
            raise Unavailable(f"{obstacle}, and backend udp has Mode kernel: remedy that, or write Mode auto or user")
        return replace(self, is_in_kernel=not obstacle, reason=obstacle or "the kernel has FOU")

    @property
    def way(self) -> str:
        """See Backend."""
        return f"in {'the kernel' if self.is_in_kernel else 'user space'}: {self.reason}" if self.reason else ""

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """`flannel.fou` or `flannel0`. Raises InvalidInput where the underlay leaves it less than IPv4 needs.

        Where packets stay on the host, nothing completes the checksums that the kernel leaves to a network card, and
        a peer in user space reads them as they are: there the device of the kernel computes them.
        """
        mtu = require_room("UDP", self.mtu(underlay), family, underlay)
        own = identity.own.subnet(family) if identity.own else None
        address = own_address(own.cidr) if own else None
        if not self.is_in_kernel:
            return LinkSpec(UDP_DEVICE.of(self.suffix), family, TunLink(), underlay.name, mtu, address=address)
        local, port = str(underlay.address(family)), self.port
        tunnel = FouLink(local, encap_type=ENCAP_FOU, encap_sport=port, encap_dport=port)
        offload = False if underlay.kind in _WITHIN_THE_HOST else None
        return LinkSpec(FOU_DEVICE, family, tunnel, underlay.name, mtu, address=address, checksum_offload=offload)

    def mtu(self, underlay: Underlay) -> int:
        """The underlay's without the outer headers."""
        return underlay.mtu - _OVERHEAD

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """A lease without a public address."""
        return "" if subnet.public_address else "the lease has no public IPv4 address"

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """`subnet via PublicIP dev <device> onlink`: where the outer packet goes to. The proxy reads it too."""
        return [
            tunnel_route(family_of(subnet.cidr), subnet.cidr, subnet.public_address, links)
            for subnet in subnets
            if subnet.public_address
        ]

    def node_objects(self, own_subnets: Sequence[Network], links: NodeLinks) -> Iterable[KernelObject]:
        """Returns the FOU port in the kernel; else `network dev flannel0`, so that the proxy answers for unknown
        subnets.

        No such route where the network covers the underlay, whose packets would be lost.
        """
        local = links.underlay.address(IPV4)
        if self.is_in_kernel and local is not None:
            return [FouPort(local.packed, self.port, links.devices[IPV4].index)]
        places = [*links.underlay.networks, *map(ip_network, links.underlay.addresses)]
        return [
            device_route(IPV4, network, links)
            for network in links.networks
            if not any(network.version == place.version and network.overlaps(place) for place in places)
        ]

    async def run(self, host: Host) -> None:
        """Keeps the proxy running, or watches the FOU port."""
        address = str(host.underlay.address(IPV4))
        if self.is_in_kernel:
            await watch_port(address, self.port, host.audit)
        else:
            device, path = UDP_DEVICE.of(self.suffix), host.directory / f"udp{self.suffix}.sock"
            await keep_running(device, address, self.port, path, host.report)
