"""Which routes of a dataplane that has been stopped a flanneld beside them still needs: pure, from a dump."""

from collections import defaultdict
from collections.abc import Hashable, Set

from services.core.plan import Plan, plan
from services.dataplane.flannel_shape import DEFAULT_METRIC, flannel_shape
from services.dataplane.netlink.objects import KernelObject, Neighbour, Route


def leftovers(routes: Set[Route], neighbours: Set[Neighbour], protocol: int) -> Plan[KernelObject]:
    """What removes every route of our protocol and takes no way from a packet; nothing else is ever touched.

    `neighbours` are the permanent ones of the devices that our routes leave through. A route of ours goes

    * where another one wins, or would over flannel's: with vxlan a flanneld makes its own beside ours;
    * where its gateway on the device is not known: then it leads nowhere, for its peer has left;
    * else once it was made again in flannel's shape: with host-gw a flanneld takes ours for its own.
    """
    ours = frozenset(route for route in routes if route.protocol == protocol)
    best: dict[Hashable, int] = defaultdict(lambda: 1 << 32)
    for route in routes - ours:
        best[route.destination] = min(best[route.destination], route.metric)
    known = {(neighbour.ifindex, neighbour.dst) for neighbour in neighbours}
    needed = {
        route
        for route in ours
        if best[route.destination] > max(route.metric, DEFAULT_METRIC[route.family])
        and (not route.onlink or (route.ifindex, route.gateway) in known)
    }
    return plan(frozenset[KernelObject](ours), flannel_shape(needed))
