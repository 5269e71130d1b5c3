"""aws-vpc, gce, ali-vpc, tencent-vpc: the cloud's router carries the packets, by routes of services/cloud."""

from dataclasses import dataclass
from typing import ClassVar

from services.core.leases.lease import Subnet
from services.dataplane.backends.alloc import Alloc
from services.dataplane.backends.backend import NodeLinks


@dataclass(frozen=True)
class CloudRoutes(Alloc):
    """Nothing on a node but the lease and `subnet.env`: the MTU of the underlay, and no credentials (ADR 50)."""

    ignores_public_ip: ClassVar[bool] = True
    """The cloud knows the node by the address of its interface."""

    def rejection(self, subnet: Subnet, links: NodeLinks) -> str:
        """A lease without an address, by which the cloud would find the node."""
        return "" if subnet.public_address else "the lease has no public address"
