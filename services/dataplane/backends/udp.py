"""udp: IPv4 packets in UDP datagrams, carried by a process through a TUN device (flannel's `udp`). IPv4 only.

Slow, as each packet passes user space twice; for hosts whose kernel has nothing better, and beside flannel's own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import ClassVar, Final, Self

from services.core.backend_types import UDP_DEVICE, UDP_PORT
from services.core.errors import InvalidInput
from services.core.family import IPV4, Family, Network, family_of
from services.core.formats.gojson import GoObject
from services.core.leases.lease import Subnet
from services.core.limits import SMALLEST_MTU
from services.dataplane.backends.backend import Backend, Host, NodeIdentity, NodeLinks
from services.dataplane.backends.routes import device_route, tunnel_route
from services.dataplane.links.desired import TUN, BareLink, LinkSpec, own_address
from services.dataplane.netlink.objects import KernelObject
from services.dataplane.udp.supervisor import keep_running
from services.dataplane.underlay.selection import Underlay

_OVERHEAD: Final = 28
"""Bytes: the outer IPv4 and UDP headers."""


@dataclass(frozen=True, slots=True)
class TunLink(BareLink):
    """A TUN device; what it has of its own (owner, queues) is left to whoever has it open."""

    kind: ClassVar[str] = TUN
    instead: ClassVar[str] = "vxlan"

    def excludes(self, wanted: Self) -> bool:
        """Many may be there."""
        return False

    def identity(self) -> str:
        """None may not be shared."""
        return "nothing"

    def is_named(self, name: str) -> bool:
        """See LinkKind."""
        return name == UDP_DEVICE


@dataclass(frozen=True)
class Udp(Backend):
    """flannel's option of the same name."""

    port: int = UDP_PORT
    """Of this node and of every peer: leases do not publish it."""
    lease_type: ClassVar[str] = ""
    link_kind: ClassVar[type[TunLink]] = TunLink

    @classmethod
    def parse(cls, options: GoObject) -> Self:
        """See Backend."""
        return cls(options.number("Port", most=65535) or UDP_PORT)

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """`flannel0`. Raises InvalidInput where the underlay leaves it less than IPv4 needs."""
        mtu, least = self.mtu(underlay), SMALLEST_MTU[family.version]
        if mtu < least:
            raise InvalidInput(
                f"{underlay.name} has MTU {underlay.mtu}, of which UDP leaves {max(mtu, 0)} bytes for packets, and "
                f"{family} needs {least}: raise it, or choose another interface with --iface"
            )
        own = identity.own.subnet(family) if identity.own else None
        address = own_address(own.cidr) if own else None
        return LinkSpec(UDP_DEVICE, family, TunLink(), underlay.name, mtu, address=address)

    def mtu(self, underlay: Underlay) -> int:
        """The underlay's without the outer headers."""
        return underlay.mtu - _OVERHEAD

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """A lease without a public address."""
        return "" if subnet.public_address else "the lease has no public IPv4 address"

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """`subnet via PublicIP dev flannel0 onlink`: the kernel ignores the gateway, and the proxy reads it."""
        return [
            tunnel_route(family_of(subnet.cidr), subnet.cidr, subnet.public_address, links)
            for subnet in subnets
            if subnet.public_address
        ]

    def node_objects(self, own_subnets: Sequence[Network], links: NodeLinks) -> Iterable[KernelObject]:
        """`network dev flannel0`, so that the proxy answers packets to subnets that no node has.

        Not where the network covers the underlay, whose packets would be lost.
        """
        places = [*links.underlay.networks, *map(ip_network, links.underlay.addresses)]
        return [
            device_route(IPV4, network, links)
            for network in links.networks
            if not any(network.version == place.version and network.overlaps(place) for place in places)
        ]

    async def run(self, host: Host) -> None:
        """Keeps the proxy running."""
        address = str(host.underlay.address(IPV4))
        await keep_running(("services.dataplane.udp.proxy", UDP_DEVICE, address, str(self.port)), host.report)
