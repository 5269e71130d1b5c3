"""The routes that swallow what no pod of this node takes: flannel's `--ip-blackhole-route`."""

from typing import Final

from services.core.family import family_of
from services.core.lease import Subnet
from services.dataplane.admission import own_refusal
from services.dataplane.netlink.objects import Route
from services.dataplane.netlink.uapi import AF_INET6, LOOPBACK_IFINDEX, RTN_BLACKHOLE
from services.dataplane.situation import Situation

METRIC: Final = 2**32 - 1
"""The last there is, so that every other route to the subnet wins, and the bridge's first of all."""


def blackhole_routes(situation: Situation) -> frozenset[Route]:
    """One for each own subnet, if the operator wants them: packets to an address that no pod has end here.

    Without it they leave through the default route, and come back where that leads into the overlay. An own lease
    is data from the network too: a subnet that must not be ours gets none.
    """
    if not situation.blackhole:
        return frozenset()
    return frozenset(
        Route(
            cidr.network_address.packed,
            b"",
            METRIC,
            family_of(cidr).af,
            cidr.prefixlen,
            LOOPBACK_IFINDEX if family_of(cidr).af == AF_INET6 else 0,  # where the kernel puts them
            situation.links.route_protocol,
            route_type=RTN_BLACKHOLE,
        )
        for cidr in situation.own_subnets
        if own_refusal(Subnet(cidr), situation) is None
    )
