"""The networks of the node's own interfaces in the underlay, from the kernel's route tables in /proc."""

import sys
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path
from typing import Final

from flannelette.services.core.family import Network

_NET: Final = Path("/proc/thread-self/net")
_OF_PODS: Final = ("cni", "docker", "flannel", "fl-", "veth", "lo")
"""Beginnings of the names of the overlay's interfaces, and of those of pods."""
Route = tuple[str, Network, bool]
"""Interface, destination, and whether there is a gateway."""


def connected_networks() -> list[Network]:
    """Returns the networks of the interfaces that have a default route; if none has, of all but the overlay's."""
    try:
        v4, v6 = ((_NET / name).read_text().splitlines() for name in ("route", "ipv6_route"))
    except OSError:
        return []
    return networks_of_underlay([*ipv4_routes(v4[1:]), *ipv6_routes(v6)])


def networks_of_underlay(routes: Iterable[Route]) -> list[Network]:
    """Selects the networks that `connected_networks` returns. Pure."""
    found = [route for route in routes if not route[0].startswith(_OF_PODS)]
    named = {name for name, network, _ in found if not network.prefixlen}
    return [
        network
        for name, network, has_gateway in found
        if not has_gateway and 0 < network.prefixlen < network.max_prefixlen and (name in named or not named)
    ]


def ipv4_routes(lines: Iterable[str]) -> Iterator[Route]:
    """The routes of /proc/net/route, whose numbers have the order of this machine."""
    for line in lines:
        name, destination, gateway, *_, mask, _, _, _ = line.split()
        address, bits = (IPv4Address(int(each, 16).to_bytes(4, sys.byteorder)) for each in (destination, mask))
        yield name, ip_network(f"{address}/{bits}", strict=False), int(gateway, 16) != 0


def ipv6_routes(lines: Iterable[str]) -> Iterator[Route]:
    """The routes of /proc/net/ipv6_route, without those of links and of multicast."""
    for line in lines:
        destination, length, _, _, gateway, *_, name = line.split()
        network = ip_network((IPv6Address(int(destination, 16)), int(length, 16)))
        if not (network.is_link_local or network.is_multicast):
            yield name, network, int(gateway, 16) != 0
