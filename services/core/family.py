"""The two address families, as rows of one table."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import Final, TypeAlias

from flannelette.services.core.frozen import frozen

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network


@frozen
class Family:
    """What differs between IPv4 and IPv6; everything else is one code path."""

    version: int
    """4 or 6, as `ipaddress` says it."""
    name: str
    """Name for people: `IPv4` or `IPv6`."""
    bits: int
    """Length of an address."""
    af: int
    """AF_INET or AF_INET6 of Linux (bits/socket.h)."""
    key_prefix: str
    """What flannel puts before `Network`, `SubnetLen`, ... in its configuration."""
    multicast: Network
    """Multicast addresses, which are never masqueraded."""
    default_subnet_length: int
    """Subnets of this length, where the network has room for four of them."""
    default_metric: int
    """What a route gets that names no metric."""
    vxlan_overhead: int
    """Bytes that VXLAN adds over an underlay of this family: outer IP, UDP, VXLAN, inner Ethernet (RFC 7348)."""

    def __str__(self) -> str:
        return self.name

    def __hash__(self) -> int:
        return self.version  # a key by the thousand, and the rows are two


IPV4: Final = Family(4, "IPv4", 32, 2, "", ip_network("224.0.0.0/4"), 24, 0, 50)
IPV6: Final = Family(6, "IPv6", 128, 10, "IPv6", ip_network("ff00::/8"), 64, 1024, 70)

FAMILIES: Final = (IPV4, IPV6)
"""Both families, in the order in which everything lists them."""


def family_of(value: Address | Network) -> Family:
    """The row of an address or a network."""
    return IPV4 if value.version == 4 else IPV6
