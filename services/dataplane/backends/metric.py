"""The metric of each peer's route: what makes the kernel insert routes in constant time."""

from services.core.family import Network


def route_metric(subnet: Network) -> int:
    """1 to 65536, a pure function of the subnet: REPLACE stays idempotent.

    Linux hashes routes by protocol, scope, preferred source, metric and device, but not by gateway
    (fib_create_info in net/ipv4/fib_semantics.c): routes of one device and one metric share one chain, and N of
    them cost O(N²). IPv6 does not need it and gets the same, so that the families stay alike.
    """
    size = subnet.max_prefixlen - subnet.prefixlen
    return 1 + (int(subnet.network_address) >> size) % 65536
