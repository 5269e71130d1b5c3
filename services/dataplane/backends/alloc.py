"""alloc and the backends of clouds: a subnet and its `subnet.env`, and what is beyond the node carries packets."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.dataplane.backends.backend import Backend, NodeLinks
from flannelette.services.dataplane.netlink.objects import KernelObject


@dataclass(frozen=True)
class Alloc(Backend):
    """The backend alloc: no options, no device, and the MTU of the underlay. Its leases say no backend, as flannel's
    do.
    """

    lease_type: ClassVar[str] = ""

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """None, whatever the lease has."""
        return ""

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """None: a peer needs nothing, and counts as programmed."""
        return ()


@dataclass(frozen=True)
class CloudRoutes(Alloc):
    """aws-vpc, ...: the cloud's router carries the packets, by routes that services/cloud writes (ADR 50).

    A node needs nothing for them, and no credentials.
    """

    ignores_public_ip: ClassVar[bool] = True
    """The cloud knows the node by the address of its interface."""

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """A lease without an address, by which the cloud would find the node."""
        return "" if subnet.public_address else "the lease has no public address"
