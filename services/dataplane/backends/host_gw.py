"""host-gw: every peer is a route to its subnet through the peer itself, on one layer-2 network."""

from dataclasses import dataclass

from services.core.errors import Misconfigured
from services.core.family import Address, Family, Network
from services.core.lease import BackendData, Subnet
from services.dataplane.backends.backend import Device, DeviceSpec, Links, Unsuitable
from services.dataplane.backends.metric import route_metric
from services.dataplane.netlink.objects import KernelObject, Route
from services.dataplane.underlay import Underlay


@dataclass(frozen=True, slots=True)
class HostGw:
    """It has no options."""

    lease_type: str = "host-gw"
    follows_routes: bool = False
    shares_addresses: bool = False

    def device(self, family: Family, underlay: Underlay, node: str) -> DeviceSpec | None:
        """None: routes go out of the underlay's interface. Refuses a public address that is not on it."""
        if underlay.address(family) != underlay.public_address(family):
            raise Misconfigured(
                f"host-gw needs the public {family} address {underlay.public_address(family)} on {underlay.name}, "
                f"which has {underlay.address(family)}: correct --public-ip, or use vxlan"
            )
        return None

    def mtu(self, underlay: Underlay) -> int:
        """The underlay's: nothing is added to a packet."""
        return underlay.mtu

    def warnings(self, underlay: Underlay) -> list[str]:
        """None: it has no options."""
        return []

    def data(self, device: Device | None) -> BackendData | None:
        """Nothing: the public address says it all."""
        return None

    def objects(self, family: Family, subnet: Subnet, links: Links) -> frozenset[KernelObject]:
        """`subnet via PublicIP dev <underlay>`, not onlink: the kernel refuses a peer that is not a neighbour."""
        if subnet.public_address is None:
            raise Unsuitable(f"the lease has no public {family} address")
        return frozenset([direct_route(family, subnet.cidr, subnet.public_address, links)])


def direct_route(family: Family, cidr: Network, gateway: Address, links: Links) -> Route:
    """`cidr via gateway dev <underlay>`."""
    return Route(
        cidr.network_address.packed,
        gateway.packed,
        route_metric(cidr),
        family.af,
        cidr.prefixlen,
        links.underlay.index,
        links.route_protocol,
    )
