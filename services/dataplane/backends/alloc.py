"""alloc: the node gets a subnet and its `subnet.env`, and something else carries the packets (flannel's `alloc`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from services.core.family import Network
from services.core.leases.lease import Subnet
from services.dataplane.backends.backend import Backend, NodeLinks
from services.dataplane.netlink.objects import KernelObject


@dataclass(frozen=True)
class Alloc(Backend):
    """It has no options, no device, and the MTU of the underlay. Its leases say no backend, as flannel's do."""

    lease_type: ClassVar[str] = ""

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        """None: a peer needs nothing, and counts as programmed."""
        return ()
