"""Routes to a peer's subnet, as the backends make them."""

from flannelette.services.core.family import IPV4, Address, Family, Network
from flannelette.services.dataplane.backends.backend import NodeLinks
from flannelette.services.dataplane.netlink.objects import RT_SCOPE_LINK, RT_SCOPE_UNIVERSE, Route


def direct_route(family: Family, cidr: Network, gateway: Address, links: NodeLinks, *, onlink: bool = False) -> Route:
    """`cidr via gateway dev <underlay>`: not `onlink`, the kernel refuses a gateway that is not connected."""
    return _route(family, cidr, gateway, links.underlay.index, links, onlink=onlink)


def tunnel_route(family: Family, cidr: Network, gateway: Address | None, links: NodeLinks) -> Route:
    """`cidr via gateway dev <overlay device> onlink`: the device takes any gateway. None: the network address."""
    return _route(family, cidr, gateway, links.devices[family].index, links, onlink=True)


def device_route(family: Family, cidr: Network, links: NodeLinks) -> Route:
    """`cidr dev <overlay device>`: the device itself knows where packets go."""
    scope = RT_SCOPE_LINK if family is IPV4 else RT_SCOPE_UNIVERSE
    return _route(family, cidr, None, links.devices[family].index, links)._replace(gateway=b"", scope=scope)


def network_route(family: Family, cidr: Network, links: NodeLinks) -> Route:
    """`network dev <overlay device>`, with the key that flannel's has, so that the one replaces the other."""
    return device_route(family, cidr, links)._replace(metric=family.default_metric)


def _route(
    family: Family, cidr: Network, gateway: Address | None, ifindex: int, links: NodeLinks, *, onlink: bool = False
) -> Route:
    destination = cidr.network_address.packed
    return Route(
        destination,
        destination if gateway is None else gateway.packed,
        route_metric(cidr),
        family.af,
        cidr.prefixlen,
        ifindex,
        links.route_protocol,
        onlink=onlink,
    )


def route_metric(subnet: Network) -> int:
    """1 to 65536, a pure function of the subnet: REPLACE stays idempotent.

    Linux hashes routes by protocol, scope, preferred source, metric and device, but not by gateway
    (fib_create_info in net/ipv4/fib_semantics.c): routes of one device and one metric share one chain, and N of
    them cost O(N²). IPv6 does not need it and gets the same, so that the families stay alike.
    """
    size = subnet.max_prefixlen - subnet.prefixlen
    return 1 + (int(subnet.network_address) >> size) % 65536
