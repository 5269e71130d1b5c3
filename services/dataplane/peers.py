"""Makes peers of leases: the kernel objects that each peer needs, or why a lease is rejected. Pure.

First the rules for subnets of leases that may be carried at all: a table, because a lease is data from the network.
Then what one peer needs, what the node itself needs, and what both depend on; and the set of peers, every lease of
another node with its objects or why it is rejected. Nothing here reads or changes the kernel, waits, or looks at a
clock.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

from flannelette.services.core.addresses import Block, address_blocks, not_hosts, subnet_blocks
from flannelette.services.core.backend_types import shares_addresses
from flannelette.services.core.family import FAMILIES, Address, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.conflicts import KINDS, Claim, ConflictIndex, Loss, losses
from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData
from flannelette.services.core.limits import SMALLEST_MTU
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.backends.backend import Backend, NodeLinks
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.netlink.object_text import with_mtu
from flannelette.services.dataplane.netlink.objects import (
    DIR_OUT,
    RTN_BLACKHOLE,
    IkeConnection,
    KernelObject,
    Route,
    XfrmPolicy,
    packed_mac,
)
from flannelette.services.dataplane.netlink.uapi import AF_INET, AF_INET6, LOOPBACK_IFINDEX
from flannelette.services.dataplane.underlay import Underlay


@frozen
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


@frozen
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


@frozen
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


Losses: TypeAlias = Mapping[tuple[str, int], Loss]
"""Losses by lease and IP version, see services/core/leases/conflicts.py."""

WHOLE: Final = frozenset(("no-subnet", "two-subnets", "backend"))
"""Rules about a lease as a whole, whatever its subnets are."""

PathMtus: TypeAlias = Mapping[tuple[str, int], int]
"""Bytes of the largest packet that reaches a peer, by the name of its lease and IP version, where that is less than
its overlay should carry."""

_NONE: Final[Losses] = {}
_ALL_PASS: Final[PathMtus] = MappingProxyType({})
_BLACKHOLE_METRIC: Final = 2**32 - 1
"""The last there is, so that every other route to the subnet wins, and the bridge's first of all."""


@dataclass(frozen=True)
class Overlay:
    """A backend with its devices: what carries packets to some peers."""

    name: str
    """The backend's, as the configuration has it."""
    backend: Backend
    links: NodeLinks
    works: bool = True
    """Whether packets get through it; False: what carries them is not seen to run yet."""


@dataclass(frozen=True)
class PeerContext:
    """What a peer's objects depend on beside its lease. Where two are equal, a lease needs the same objects."""

    network: NetworkConfig
    backend: Backend
    links: NodeLinks
    own_subnets: tuple[Network, ...] = ()
    limits: OperatorLimits = OperatorLimits()
    blackhole: bool = False
    """The own subnets get a route that swallows what no pod takes."""
    adds_only: bool = False
    """Missing objects are added; those in the kernel are newer and stay. For cached leases, and see `after`."""
    works: bool = True
    """Whether packets get through the backend; see Overlay."""
    earlier: tuple[Overlay, ...] = ()
    """Overlays of the configurations before, the last one first, while leases of peers still say their backends (ADR
    35)."""
    connected: frozenset[Hashable] = frozenset()
    """While there are such: the keys of connections (ipsec's) that carry packets."""

    def after(self, last: "PeerContext | None") -> "PeerContext":
        """The context to program now; `last` is the one before, None at the start.

        A node that starts while it changes to a backend that does not work yet does not know how it reached its
        peers, but the kernel does.
        """
        is_start = last is None or last.adds_only
        return replace(self, adds_only=True) if is_start and self.earlier and not self.works else self

    @cached_property
    def overlays(self) -> tuple[Overlay, ...]:
        """All, that of the configuration in force first."""
        return Overlay(self.network.backend_type, self.backend, self.links, self.works), *self.earlier

    def overlay_of(self, lease: Lease) -> Overlay | None:
        """The one that carries packets to the node of a lease; None: the lease says none of their backends."""
        found = [each for each in self.overlays if each.backend.lease_type == lease.backend_type]
        if len(found) > 1:  # two VNIs
            found.sort(key=lambda each: any(each.backend.rejection(s, each.links) for s in lease.subnets))
        return found[0] if found else None

    def devices(self) -> Iterator[Device]:
        """Yields the devices of all overlays."""
        return (device for each in self.overlays for device in each.links.devices.values())

    def names(self) -> dict[int, str]:
        """Interface names by index, for texts."""
        return {index: name for each in self.overlays for index, name in each.links.names().items()}

    @cached_property
    def bounds(self) -> Bounds:
        """Returns what the subnets of leases are checked against, by IP version."""
        own_macs = {packed_mac(device.mac) for device in self.devices()}
        parts = (
            self.network,
            self.links.underlay,
            self.own_subnets,
            self.limits,
            own_macs,
            shares_addresses(self.backend.lease_type),
        )
        return {family.version: address_limits(family, *parts) for family in FAMILIES}

    def differs_by_devices_only(self, last: "PeerContext") -> bool:
        """Whether nothing was decided anew since: then another program removed what is missing in the kernel."""
        return self != last and _without_devices(self) == _without_devices(last)

    def differs_by_own_subnets_only(self, last: "PeerContext") -> bool:
        """Whether what was decided still holds for every lease that is not near the own subnets; also if equal."""
        follows = any(each.backend.follows_own_subnets for each in self.overlays)
        return not follows and replace(self, own_subnets=last.own_subnets) == last


@frozen
class Peer:
    """A lease of another node, and what it needs in the kernel."""

    lease: Lease
    objects: tuple[KernelObject, ...]
    refusals: tuple[Rejection, ...] = ()
    """What of it is not carried."""
    candidates: tuple[Subnet, ...] = ()
    """The subnets that are, or would be if it were alone."""
    former: Lease | None = None
    """The lease as it was when the node had another backend, if that still counts."""
    via: str = ""
    """The backend that carries packets to it; empty: that of the configuration in force."""

    @property
    def reason(self) -> str:
        """Why it, or a part of it, is not carried as the configuration says; empty: it is."""
        told = f"reached by {self.via} until its lease has the backend of the configuration" if self.via else ""
        return "; ".join(dict.fromkeys(filter(None, (told, *(each.reason for each in self.refusals)))))

    @property
    def ignored(self) -> str:
        """Why it gets nothing; empty if it gets something."""
        return "" if self.objects else self.reason


def peer_of(
    lease: Lease,
    context: PeerContext,
    losses: Losses = _NONE,
    former: Lease | None = None,
    path_mtus: PathMtus = _ALL_PASS,
) -> Peer:
    """The peer. A lease is data from the network: what does not fit is refused with a reason, never programmed.

    `former` is what the peer's lease said when its node had another backend. A node that has changed to a backend
    that this node does not have, or that does not work here yet, is reached as before, for it still has what takes
    those packets. And while the overlay of `former` is here, both need what they need to receive: the peer may send
    by either.
    """
    overlay = context.overlay_of(lease)
    misshapen = _misshapen(lease)
    is_usable = former is not None and misshapen is None and _are_alike(former, lease)
    before = context.overlay_of(former) if former is not None and is_usable else None
    if before is None or before is overlay:
        former = before = None
    general = _foreign(lease, context, before) if overlay is None else misshapen
    refusals: tuple[Rejection, ...] = (general,) if general is not None else ()
    said = lease
    if former is not None and (overlay is None or not _carries(overlay, lease, context)):
        said, overlay = former, before
    if overlay is None or misshapen is not None:
        return Peer(lease, (), refusals)
    carried: tuple[Subnet, ...] = ()
    candidates: tuple[Subnet, ...] = ()
    for subnet in said.subnets:
        found = reject(subnet, context.bounds)
        if found is None and (lack := overlay.links.lacking.get(family_of(subnet.cidr))):
            is_addressless = family_of(subnet.cidr) in dict(overlay.links.underlay.lacking)
            found = Rejection(NO_ADDRESS if is_addressless else "no-room", lack)
        if found is None and (reason := overlay.backend.rejection(subnet, overlay.links)):
            found = Rejection("backend-data", reason)
        if found is None:
            candidates += (subnet,)
            loss = losses.get((lease.name, subnet.cidr.version)) if losses else None
            found = Rejection(loss.kind, loss.reason) if loss else None
        if found is None:
            carried += (subnet,)
        else:
            refusals += (found,)
    if candidates == lease.subnets:
        candidates = lease.subnets  # once in memory, as nearly always
    objects = _objects(carried, overlay, context)
    if former is not None and before is not None:
        its, other = (lease, context.overlay_of(lease)) if overlay is before else (former, before)
        cidrs = [subnet.cidr for subnet in carried]
        if other is not None:
            fit = [s for s in its.subnets if s.cidr in cidrs and reject(s, context.bounds) is None]
            kept = [s for s in fit if not other.backend.rejection(s, other.links)]
            objects += tuple(item for item in _objects(kept, other, context) if not _is_for_sending(item))
    if path_mtus:
        objects = tuple(_measured(objects, lease.name, path_mtus, overlay.backend.mtu(overlay.links.underlay)))
    via = "" if overlay is context.overlays[0] else overlay.name
    return Peer(lease, objects, refusals, candidates, former, via)


def mark_of(lease: Lease) -> Hashable:
    """What a lease says of the backend that its node has in force."""
    return lease.backend_type, *(s.data.vni & 0xFFFF for s in lease.subnets if isinstance(s.data, VxlanData))


def _objects(subnets: Sequence[Subnet], overlay: Overlay, context: PeerContext) -> tuple[KernelObject, ...]:
    return tuple(overlay.backend.peer_objects(subnets, context.own_subnets, overlay.links)) if subnets else ()


def _measured(objects: Iterable[KernelObject], name: str, path_mtus: PathMtus, most: int) -> Iterator[KernelObject]:
    """Gives the routes the MTU of their path, of which the kernel tells whoever sends more."""
    for item in objects:
        if isinstance(item, Route) and not item.rest:
            version = 4 if item.family == AF_INET else 6
            mtu = path_mtus.get((name, version), 0)
            yield with_mtu(item, mtu) if SMALLEST_MTU[version] <= mtu < most else item
        else:
            yield item


def _carries(overlay: Overlay, lease: Lease, context: PeerContext) -> bool:
    """Whether packets get to the node of a lease by this overlay."""
    if not overlay.works:
        return False
    connections = (o for o in _objects(lease.subnets, overlay, context) if isinstance(o, IkeConnection))
    return all(each.key in context.connected for each in connections)


def _is_for_sending(item: KernelObject) -> bool:
    """Whether packets to the peer take the overlay because of it."""
    return isinstance(item, Route) or (isinstance(item, XfrmPolicy) and item.direction == DIR_OUT)


def _are_alike(former: Lease, lease: Lease) -> bool:
    """Whether two leases are of one node at one place, whatever their backends."""
    return former.node == lease.node and [(s.cidr, s.public_address) for s in former.subnets] == [
        (s.cidr, s.public_address) for s in lease.subnets
    ]


def _without_devices(context: PeerContext) -> PeerContext:
    links = replace(context.links, devices={})
    earlier = tuple(replace(each, links=replace(each.links, devices={})) for each in context.earlier)
    return replace(context, links=links, earlier=earlier)


def node_objects(context: PeerContext) -> frozenset[KernelObject]:
    """What the node needs independent of its peers: the backend's objects, and flannel's `--ip-blackhole-route`.

    An own lease is data from the network too: for a subnet that must not be ours there is nothing.
    """
    usable = [cidr for cidr in context.own_subnets if reject_own(Subnet(cidr), context.bounds) is None]
    of_backends = frozenset(o for each in context.overlays for o in each.backend.node_objects(usable, each.links))
    protocol = context.links.route_protocol
    return of_backends | {_blackhole(cidr, protocol) for cidr in usable if context.blackhole}


def _blackhole(cidr: Network, protocol: int) -> Route:
    """Where packets to an address of an own subnet that no pod has end.

    Without it they leave through the default route, and come back where that leads into the overlay.
    """
    af = family_of(cidr).af
    device = LOOPBACK_IFINDEX if af == AF_INET6 else 0  # where the kernel puts them
    packed, length = cidr.network_address.packed, cidr.prefixlen
    return Route(packed, b"", _BLACKHOLE_METRIC, af, length, device, protocol, route_type=RTN_BLACKHOLE)


def _misshapen(lease: Lease) -> Rejection | None:
    """What speaks against the lease as a whole."""
    if not lease.subnets:
        return Rejection("no-subnet", "the lease has no subnet")
    if len(lease.subnets) > 1 and len({subnet.cidr.version for subnet in lease.subnets}) < len(lease.subnets):
        return Rejection("two-subnets", "the lease has two subnets of one address family")
    return None


def _foreign(lease: Lease, context: PeerContext, before: Overlay | None) -> Rejection:
    """Rejects a lease whose backend this node has not; with an overlay `before`, the node is reached by that."""
    theirs, ours = (kind or "none" for kind in (lease.backend_type, context.backend.lease_type))
    more = "" if before is None else "; it is reached as before its change"
    return Rejection("backend", f"the backend type is {theirs}, that of the network is {ours}{more}")


@frozen
class PeerDelta:
    """The peers that an update has changed: as they were and as they are, by lease name."""

    old: Mapping[str, Peer]
    new: Mapping[str, Peer]

    @property
    def rejected(self) -> list[Peer]:
        """The peers of which something is rejected that was not, or for another reason."""
        last = {name: peer.refusals for name, peer in self.old.items()}
        return [peer for name, peer in self.new.items() if peer.refusals and peer.refusals != last.get(name)]


class PeerSet:
    """`peers` by lease name, as the leases and the context of the last update determine them."""

    def __init__(
        self, node: str, known: Mapping[str, Peer] = MappingProxyType({}), path_mtus: PathMtus = _ALL_PASS
    ) -> None:
        """`known` are peers of another set: what they were before their nodes had another backend counts here too."""
        self.peers: dict[str, Peer] = {}
        self.path_mtus = dict(path_mtus)
        """Change it by `limit`."""
        self.own_losses: tuple[Loss, ...] = ()
        """Claims of the own lease that other nodes do not carry, because another lease has the older claim."""
        self._node = node
        self._context: PeerContext | None = None
        self._alone = dict(known)
        """Each peer as it is without conflicts; the own lease too, of which only the claims count."""
        self._conflicts: ConflictIndex | None = None
        self._lost: Losses = {}
        self._changed = set[str]()  # peers that had another backend
        self._limited = set[str]()
        """Leases of peers of which the MTU of the path is another one since the last update."""

    def limit(self, name: str, version: int, mtu: int) -> bool:
        """Has the routes to a peer say from the next update on that their path carries so much; 0: as much as it
        should. Returns whether that is news.
        """
        if self.path_mtus.get((name, version), 0) == mtu:
            return False
        self.path_mtus.pop((name, version), None)
        if mtu:
            self.path_mtus[name, version] = mtu
        self._limited.add(name)
        return True

    def update(
        self, context: PeerContext, leases: Mapping[str, Lease], changed: Collection[str] | None = None
    ) -> PeerDelta:
        """Evaluates the leases that were `changed` since the last update, by name; None, or a new context: all.

        A peer whose lease is the same object is not evaluated again, unless the context is another one for it.
        """
        last, self._context = self._context, context
        is_same = last is not None and (context is last or context == last)
        is_alike = is_same or (last is not None and context.differs_by_own_subnets_only(last))
        limited, self._limited = self._limited, set()
        if changed is not None and is_same:
            names: Collection[str] = {*changed, *limited} if limited else changed
        else:
            names = {**leases, **self._alone}  # as they lie in memory
            self.path_mtus = {place: mtu for place, mtu in self.path_mtus.items() if place[0] in leases}
        fresh: list[str] = []
        before: list[Peer] = []
        after: list[Peer] = []
        for name in names:
            lease, known = leases.get(name), self._alone.get(name)
            if known is not None:
                holds = is_same or (is_alike and not _is_near_own(known, context))
                if known.lease is lease and holds and name not in limited:
                    continue
                before.append(self._alone.pop(name))
                self._changed.discard(name)
            if lease is not None and not lease.is_idle:
                after.append(self._evaluate(lease, context, known))
                self._alone[name] = after[-1]
                if after[-1].former is not None:
                    self._changed.add(name)
            fresh.append(name)
        lost = self._losses(context, before, after, is_alike=is_alike)
        if lost is not self._lost:
            fresh += {name for name, _ in (*lost, *self._lost)}.difference(fresh)
            self._lost = lost
            own = (loss for loss in lost.values() if loss.lease.node == self._node)
            self.own_losses = tuple(loss for loss in own if loss.winner.node != self._node)
        if self._conflicts is not None:
            fresh += self._forget_formers(context, self._conflicts).difference(fresh)
        return self._replace(context, fresh)

    def _forget_formers(self, context: PeerContext, index: ConflictIndex) -> set[str]:
        """The peers whose former claims another lease has now, and that are not reached by them: they go."""
        gone = set[str]()
        for name in self._changed:
            peer, former = self._alone[name], self._alone[name].former
            overlay = context.overlay_of(peer.lease)
            if former and overlay and overlay.works and any(index.is_claimed((former, s)) for s in former.subnets):
                self._alone[name] = peer_of(peer.lease, context, path_mtus=self.path_mtus)
                gone.add(name)
        self._changed -= gone
        return gone

    def _evaluate(self, lease: Lease, context: PeerContext, known: Peer | None) -> Peer:
        """The peer without conflicts. `known` is what it was."""
        if lease.node != self._node:
            former = _former(lease, self.peers.get(lease.name, known), context)
            return peer_of(lease, context, former=former, path_mtus=self.path_mtus)
        is_of_this_network = context.overlay_of(lease) is not None
        return Peer(lease, (), (), lease.subnets if is_of_this_network else ())

    def _losses(self, context: PeerContext, old: Iterable[Peer], new: Iterable[Peer], *, is_alike: bool) -> Losses:
        """The claims that do not count, after these peers have changed; computed anew only if one of them clashes."""
        index = self._conflicts
        if index is None or not is_alike:
            index = ConflictIndex(context.network, _claims(self._alone.values()))
            is_clash, known = index.any(), _NONE if self._lost else self._lost
        else:
            clashes = [index.remove(claim) for claim in _claims(old)]
            clashes += [index.add(claim) for claim in _claims(new)]
            is_clash, known = any(clashes), self._lost
        self._conflicts = index
        if not is_clash:
            return known
        return losses(context.network, _claims(self._alone.values()))

    def _replace(self, context: PeerContext, names: Collection[str]) -> PeerDelta:
        """Puts the peers of these names into `peers`; what has changed."""
        beaten = {name for name, _ in self._lost}
        old: dict[str, Peer] = {}
        new: dict[str, Peer] = {}
        for name in names:
            before, peer = self.peers.pop(name, None), self._alone.get(name)
            if peer is not None and peer.lease.node == self._node:
                peer = None
            elif peer is not None and name in beaten:
                peer = peer_of(peer.lease, context, self._lost, peer.former, self.path_mtus)
            if peer is not None:
                self.peers[name] = peer
            if peer == before:
                continue
            if before is not None:
                old[name] = before
            if peer is not None:
                new[name] = peer
        return PeerDelta(old, new)


def peers_of(
    leases: Iterable[Lease],
    node: str,
    context: PeerContext,
    known: Mapping[str, Peer] = MappingProxyType({}),
    path_mtus: PathMtus = _ALL_PASS,
) -> Mapping[str, Peer]:
    """The peers that these leases make; `known` and `path_mtus` as PeerSet has them."""
    found = PeerSet(node, known, path_mtus)
    found.update(context, {lease.name: lease for lease in leases})
    return found.peers


def _is_near_own(peer: Peer, context: PeerContext) -> bool:
    return bool(peer.refusals) or any(overlaps_own(subnet, context.bounds) for subnet in peer.lease.subnets)


def _former(lease: Lease, known: Peer | None, context: PeerContext) -> Lease | None:
    """What the lease of a peer said when its node had another backend, of which this node has the overlay.

    None: it said what is another's. The conflicts of now are those of the lease as it is now.
    """
    if known is None:
        return None
    if lease is known.lease or mark_of(lease) == mark_of(known.lease) or context.overlay_of(known.lease) is None:
        return known.former
    return None if any(each.rule in KINDS for each in known.refusals) else known.lease


def _claims(peers: Iterable[Peer]) -> Iterator[Claim]:
    return ((peer.lease, subnet) for peer in peers for subnet in peer.candidates)
