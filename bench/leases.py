"""The leases that benches put into etcd, and what our backend needs in the kernel for them."""

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Final

from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData, lease_key

NETWORK: Final = IPv4Network("10.0.0.0/8")
UNDERLAY: Final = IPv4Network("172.16.0.0/12")
OWN_ADDRESS: Final = IPv4Address("172.31.255.1")
MOST_LEASES: Final = 65_000
"""So many /24 subnets has the network."""


def subnet_address(number: int) -> IPv4Address:
    """Returns the subnet address of the lease of the node of this number."""
    return NETWORK.network_address + (number << 8)


def lease(number: int, edition: int = 0) -> Lease:
    """The lease of the node of this number, from 1 to MOST_LEASES; each edition has another MAC."""
    cidr = IPv4Network((subnet_address(number), 24))
    data = VxlanData(1, ((2 << 40) + (edition % 256 << 32) + number).to_bytes(6).hex(":"))
    address = UNDERLAY.network_address + number
    return Lease(lease_key([cidr]), f"node-{number}", (Subnet(cidr, address, data),), "vxlan")


def subnets(leases: int) -> Iterator[Subnet]:
    """Yields the subnets of the first so many leases."""
    return (subnet for number in range(1, leases + 1) for subnet in lease(number).subnets)
