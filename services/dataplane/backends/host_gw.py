"""host-gw: every peer is a route to its subnet through the peer itself, on one layer-2 network."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.family import Family, Network, family_of
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.dataplane.backends.backend import Backend, NodeIdentity, NodeLinks, direct_route
from flannelette.services.dataplane.links.interfaces import LinkSpec
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.underlay import Underlay


@dataclass(frozen=True)
class HostGw(Backend):
    """The backend host-gw: no options, no device, and the MTU of the underlay, because nothing is
    added to a packet.
    """

    lease_type: ClassVar[str] = "host-gw"

    def link(self, family: Family, underlay: Underlay, identity: NodeIdentity) -> LinkSpec | None:
        """None: routes go out of the underlay's interface. Refuses a public address that is not on it."""
        if (
            underlay.address(family) != underlay.public_address(family)
            or underlay.address(family) in underlay.elsewhere
        ):
            has = (
                f", which has {underlay.address(family)}"
                if underlay.address(family) not in underlay.elsewhere
                else ""
            )
            raise Misconfigured(
                f"host-gw needs the public {family} address {underlay.public_address(family)} on {underlay.name}"
                f"{has}: correct --public-ip, or use vxlan"
            )
        return None

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """`subnet via PublicIP dev <underlay>`, not onlink: the kernel refuses a peer that is not connected."""
        return [
            direct_route(family_of(subnet.cidr), subnet.cidr, subnet.public_address, links)
            for subnet in subnets
            if subnet.public_address
        ]
