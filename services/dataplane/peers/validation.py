"""The rules for subnets of leases that may be carried at all: a table, because a lease is data from the network."""

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from flannelette.services.core.addresses import Block, address_blocks, not_hosts, subnet_blocks
from flannelette.services.core.family import Address, Family, Network, family_of
from flannelette.services.core.leases.lease import Subnet, VxlanData
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.netlink.objects import packed_mac
from flannelette.services.dataplane.underlay import Underlay


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
    """The limits of addresses in one family."""

    network: IpRange | None
    """None: the network has none in this family."""
    beside: tuple[IpRange, ...]
    """Where subnets may lie as well, see NetworkConfig."""
    operator: OperatorLimits
    """What the operator has said, of every family."""
    allowed: tuple[IpRange, ...]
    own_subnets: tuple[IpRange, ...]
    underlay: tuple[IpRange, ...]
    never: tuple[IpRange, ...]
    own_addresses: frozenset[int]
    """Addresses of this node as numbers: on the underlay's interface, and to the world."""
    not_hosts: frozenset[int]
    """Network and broadcast addresses of the underlay."""
    unusable: tuple[Block, ...]
    """Where no public address is."""
    unroutable: tuple[Block, ...]
    """Where no subnet is."""
    holds_underlay: bool
    """The network has our own address in the underlay inside."""
    own_macs: Set[bytes | None]
    """MACs of our own devices, packed."""
    shares_addresses: bool
    """Nodes behind one NAT have one public address."""


def address_limits(
    family: Family,
    network: NetworkConfig,
    underlay: Underlay,
    own_subnets: Iterable[Network],
    limits: OperatorLimits,
    own_macs: Set[bytes | None] = frozenset(),
    shares_addresses: bool = False,
) -> AddressLimits:
    """What the subnets of leases must keep to in a family, as numbers: 10,000 are compared with it."""
    enabled = network.family(family)
    address = underlay.address(family)
    ours = (*underlay.addresses, *underlay.public_addresses)
    return AddressLimits(
        network=ip_range(enabled.cidr) if enabled else None,
        beside=_spans(family, (*network.beside, *network.imported)),
        operator=limits,
        allowed=_spans(family, limits.allowed),
        own_subnets=_spans(family, own_subnets),
        underlay=_spans(family, underlay.networks),
        never=_spans(family, limits.never),
        own_addresses=frozenset(int(each) for each in ours if each.version == family.version),
        not_hosts=not_hosts(tuple(each for each in underlay.networks if each.version == family.version)),
        unusable=address_blocks(family.version, address),
        unroutable=subnet_blocks(family.version),
        holds_underlay=enabled is not None and address is not None and address in enabled.cidr,
        own_macs=own_macs,
        shares_addresses=shares_addresses,
    )


def ip_range(network: Network) -> IpRange:
    """The network as numbers."""
    first = int(network.network_address)
    return IpRange(first, first + (1 << (network.max_prefixlen - network.prefixlen)) - 1, network)


def _spans(family: Family, networks: Iterable[Network]) -> tuple[IpRange, ...]:
    return tuple(ip_range(network) for network in networks if network.version == family.version)


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why something of a lease is not carried."""

    rule: str
    """A key of RULES, or of what needs to know more than one subnet; for counting."""
    reason: str
    """Why not, in words for people."""


class Candidate(NamedTuple):
    """A subnet of a lease, and the same in numbers."""

    cidr: Network
    first: int
    last: int
    public_address: Address | None
    end: int
    """The public address; -1: none."""
    data: object


Rule: TypeAlias = Callable[[Candidate, AddressLimits], str]
"""The reason why not; empty: no objection."""
Bounds: TypeAlias = Mapping[int, AddressLimits]
"""Limits of each family, by IP version."""


def reject(subnet: Subnet, bounds: Bounds) -> Rejection | None:
    """Why a subnet of another node's lease is refused, by the first of RULES; None: it is not.

    Whether it clashes with another lease, `core.conflicts` knows; whether its data suit the backend, the backend.
    """
    return _first(RULES, subnet, bounds)


def reject_own(subnet: Subnet, bounds: Bounds) -> Rejection | None:
    """The same of a subnet that we are given ourselves: only what is about where it lies."""
    return _first(_PLACES, subnet, bounds)


def may_be_asked(subnet: Subnet, bounds: Bounds) -> bool:
    """Whether the public address of a refused lease is that of another host, as far as is known."""
    return subnet.public_address is not None and _first(_ENDS, subnet, bounds) is None


def overlaps_own(subnet: Subnet, bounds: Bounds) -> bool:
    """Whether our own subnets speak against it."""
    return _first(_NEAR_OWN, subnet, bounds) is not None


def _first(rules: Mapping[str, Rule], subnet: Subnet, bounds: Bounds) -> Rejection | None:
    first, last, cidr = ip_range(subnet.cidr)
    address = subnet.public_address
    offer = Candidate(cidr, first, last, address, -1 if address is None else int(address), subnet.data)
    limits = bounds[cidr.version]
    for name, rule in rules.items():
        if reason := rule(offer, limits):
            return Rejection(name, reason)
    return None


def _outside(offer: Candidate, bounds: AddressLimits) -> str:
    network = bounds.network
    if network is None:
        return f"the network has no {family_of(offer.cidr)}"
    first, last, _ = network
    if offer.first < first or offer.last > last or (offer.first == first and offer.last == last):
        if any(each.first <= offer.first and offer.last <= each.last for each in bounds.beside):
            return ""
        return f"subnet {offer.cidr} lies outside the network {network}"
    return ""


def _not_allowed(offer: Candidate, bounds: AddressLimits) -> str:
    if not bounds.operator.allowed or any(s.first <= offer.first and offer.last <= s.last for s in bounds.allowed):
        return ""
    allowed = ", ".join(map(str, bounds.operator.allowed))
    return f"subnet {offer.cidr} lies outside what --allowed-network allows: {allowed}"


def _single_address(offer: Candidate, bounds: AddressLimits) -> str:
    return f"subnet {offer.cidr} is a single address" if offer.first == offer.last else ""


def _own_subnet(offer: Candidate, bounds: AddressLimits) -> str:
    own = _overlapped(offer, bounds.own_subnets)
    return f"subnet {offer.cidr} overlaps our own {own}" if own else ""


def _special(offer: Candidate, bounds: AddressLimits) -> str:
    for block in bounds.unroutable:
        if block.first <= offer.last and offer.first <= block.last:
            return f"subnet {offer.cidr} covers addresses of {block.network}: {block.words}"
    return ""


def _underlay(offer: Candidate, bounds: AddressLimits) -> str:
    network = _overlapped(offer, bounds.underlay)
    if network is not None:
        return f"subnet {offer.cidr} covers addresses of the underlay {network}"
    for address in bounds.own_addresses:
        if offer.first <= address <= offer.last:
            return f"subnet {offer.cidr} covers our own address"
    return ""


def _never_route(offer: Candidate, bounds: AddressLimits) -> str:
    network = _overlapped(offer, bounds.never)
    return f"subnet {offer.cidr} covers {network}, which --never-route protects" if network else ""


def _public_address(offer: Candidate, bounds: AddressLimits) -> str:
    address = offer.public_address
    if address is None:
        return ""  # which is the backend's business
    if address.version != offer.cidr.version:
        return f"public address {address} is not an {family_of(offer.cidr)} address"
    for block in bounds.unusable:
        if block.first <= offer.end <= block.last:
            return f"public address {address} is {block.words}"
    if offer.end in bounds.not_hosts:
        return f"public address {address} is the network or broadcast address of our underlay, not a host's"
    return ""


def _own_address(offer: Candidate, bounds: AddressLimits) -> str:
    if bounds.shares_addresses or offer.end not in bounds.own_addresses:
        return ""
    return f"public address {offer.public_address} is our own"


def _pod_address(offer: Candidate, bounds: AddressLimits) -> str:
    """A tunnel whose end lies in the overlay leads into itself.

    Where the network holds our own underlay too, addresses in it say nothing: then `core.conflicts` looks closer.
    """
    end, network = offer.end, bounds.network
    if offer.first <= end <= offer.last:
        return f"public address {offer.public_address} lies in its own subnet {offer.cidr}"
    if network is None or not network.first <= end <= network.last:
        return ""
    if not bounds.holds_underlay:
        return f"public address {offer.public_address} lies in the network of the pods, {network}"
    own = next((own for own in bounds.own_subnets if own.first <= end <= own.last), None)
    return f"public address {offer.public_address} lies in our own subnet {own}" if own else ""


def _mac(offer: Candidate, bounds: AddressLimits) -> str:
    if not isinstance(offer.data, VxlanData):
        return ""
    text = offer.data.mac
    mac = packed_mac(text)
    if mac is None:
        return f"invalid MAC address {text!r}"
    if mac == _ZERO:
        return f"MAC {text} is zero"
    if mac[0] & 1:  # IEEE 802: the group bit
        return f"MAC {text} is a multicast address"
    return ""


def _own_mac(offer: Candidate, bounds: AddressLimits) -> str:
    if isinstance(offer.data, VxlanData) and packed_mac(offer.data.mac) in bounds.own_macs:
        return f"MAC {offer.data.mac} is that of our own device"
    return ""


def _overlapped(offer: Candidate, spans: Iterable[IpRange]) -> IpRange | None:
    for each in spans:
        if each.first <= offer.last and offer.first <= each.last:
            return each
    return None


NO_ADDRESS: Final = "no-address"
"""The rule about families of which this node's own underlay has no address."""
UNDERLAY: Final = "underlay"
"""The rule about subnets that this host's own underlay covers."""

_PLACES: Final[Mapping[str, Rule]] = {
    "outside": _outside,
    "not-allowed": _not_allowed,
    "single-address": _single_address,
    "special": _special,
    UNDERLAY: _underlay,
    "never-route": _never_route,
}

RULES: Final[Mapping[str, Rule]] = {
    **_PLACES,
    "own-subnet": _own_subnet,
    "public-address": _public_address,
    "own-address": _own_address,
    "pod-address": _pod_address,
    "mac": _mac,
    "own-mac": _own_mac,
}
"""Every rule by a short name, which is a label of a metric."""

_NEAR_OWN: Final = {name: RULES[name] for name in ("own-subnet", "pod-address")}
"""All that look at our own subnets."""

_ENDS: Final = {name: RULES[name] for name in ("public-address", "own-address", "pod-address")}
"""Rules that look at the public address."""

_ZERO: Final = bytes(6)
