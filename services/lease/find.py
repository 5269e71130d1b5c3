"""Finds the leases that an address belongs to. Pure."""

from collections.abc import Mapping
from ipaddress import ip_address

from services.core.errors import InvalidInput
from services.core.family import Address
from services.core.lease import Lease


def leases_of_address(leases: Mapping[str, Lease], text: str) -> dict[str, Lease]:
    """Those with this address in a subnet (a pod's) or as public address (a node's). Raises InvalidInput."""
    try:
        address = ip_address(text)
    except ValueError:
        raise InvalidInput(f"address {text!r} is no IP address: write for instance 10.5.52.2") from None
    return {name: lease for name, lease in leases.items() if _has(lease, address)}


def _has(lease: Lease, address: Address) -> bool:
    return any(address in subnet.cidr or address == subnet.public_address for subnet in lease.subnets)
