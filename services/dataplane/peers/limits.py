"""What the subnets of leases must keep to, in one address family: as numbers, because 10,000 are compared with it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from services.core.family import Address, Family, Network
from services.core.network import NetworkConfig
from services.core.special_addresses import Block, address_blocks, not_hosts, subnet_blocks
from services.dataplane.underlay.selection import Underlay


@dataclass(frozen=True, slots=True)
class OperatorLimits:
    """What the node's operator allows, whatever the lease service says."""

    allowed: tuple[Network, ...] = ()
    """No subnet outside is ever routed; empty: the network configuration alone decides."""
    never: tuple[Network, ...] = ()
    """No subnet that overlaps one of these is."""


class IpRange(NamedTuple):
    """A network, from its first to its last address."""

    first: int
    last: int
    network: Network

    def __str__(self) -> str:
        return str(self.network)


@dataclass(frozen=True, slots=True)
class AddressLimits:
    """In one family."""

    network: IpRange | None
    """None: the network has none in this family."""
    beside: tuple[IpRange, ...]
    """Where subnets may lie as well, see NetworkConfig."""
    is_limited: bool
    """Whether the operator has said in any family what is allowed."""
    allowed: tuple[IpRange, ...]
    own_subnets: tuple[IpRange, ...]
    underlay: tuple[IpRange, ...]
    never: tuple[IpRange, ...]
    own_addresses: frozenset[int]
    """On the underlay's interface and to the world."""
    not_hosts: frozenset[int]
    """Network and broadcast addresses of the underlay."""
    unusable: tuple[Block, ...]
    """Where no public address is."""
    unroutable: tuple[Block, ...]
    """Where no subnet is."""
    holds_underlay: bool
    """The network has our own address in the underlay inside."""


def address_limits(
    family: Family, network: NetworkConfig, underlay: Underlay, own_subnets: Iterable[Network], limits: OperatorLimits
) -> AddressLimits:
    """The bounds."""
    enabled = network.family(family)
    address = underlay.address(family)
    ours = (*underlay.addresses, *underlay.public_addresses)
    return AddressLimits(
        network=ip_range(enabled.cidr) if enabled else None,
        beside=_spans(family, network.beside),
        is_limited=bool(limits.allowed),
        allowed=_spans(family, limits.allowed),
        own_subnets=_spans(family, own_subnets),
        underlay=_spans(family, underlay.networks),
        never=_spans(family, limits.never),
        own_addresses=frozenset(int(each) for each in ours if each.version == family.version),
        not_hosts=not_hosts(tuple(each for each in underlay.networks if each.version == family.version)),
        unusable=address_blocks(family.version, address),
        unroutable=subnet_blocks(family.version),
        holds_underlay=_holds(enabled.cidr, address) if enabled and address else False,
    )


def ip_range(network: Network) -> IpRange:
    """The network as numbers."""
    first = int(network.network_address)
    return IpRange(first, first + (1 << (network.max_prefixlen - network.prefixlen)) - 1, network)


def _spans(family: Family, networks: Iterable[Network]) -> tuple[IpRange, ...]:
    return tuple(ip_range(network) for network in networks if network.version == family.version)


def _holds(network: Network, address: Address) -> bool:
    return address in network
