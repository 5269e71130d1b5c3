"""What the node itself needs in the kernel: its backend's objects, and flannel's `--ip-blackhole-route`."""

from typing import Final

from services.core.family import family_of
from services.core.leases.lease import Subnet
from services.dataplane.netlink.objects import KernelObject, Route
from services.dataplane.netlink.uapi import AF_INET6, LOOPBACK_IFINDEX, RTN_BLACKHOLE
from services.dataplane.peers.context import PeerContext
from services.dataplane.peers.validation import reject_own

METRIC: Final = 2**32 - 1
"""The last there is, so that every other route to the subnet wins, and the bridge's first of all."""


def node_objects(context: PeerContext) -> frozenset[KernelObject]:
    """What the node needs independent of its peers: the backend's objects, and the blackhole routes."""
    usable = [cidr for cidr in context.own_subnets if reject_own(Subnet(cidr), context) is None]
    of_backend = frozenset(context.backend.node_objects(usable, context.links))
    return of_backend | blackhole_routes(context)


def blackhole_routes(context: PeerContext) -> frozenset[Route]:
    """One for each own subnet, if the operator wants them: packets to an address that no pod has end here.

    Without it they leave through the default route, and come back where that leads into the overlay. An own lease
    is data from the network too: a subnet that must not be ours gets none.
    """
    if not context.blackhole:
        return frozenset()
    return frozenset(
        Route(
            cidr.network_address.packed,
            b"",
            METRIC,
            family_of(cidr).af,
            cidr.prefixlen,
            LOOPBACK_IFINDEX if family_of(cidr).af == AF_INET6 else 0,  # where the kernel puts them
            context.links.route_protocol,
            route_type=RTN_BLACKHOLE,
        )
        for cidr in context.own_subnets
        if reject_own(Subnet(cidr), context) is None
    )
