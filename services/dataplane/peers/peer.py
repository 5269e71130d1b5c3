"""Makes kernel objects of leases: what one peer needs, what the node itself needs, and what both depend on; the set
of peers, every lease of another node with its objects or why it is rejected. Pure.
"""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Final, TypeAlias

from flannelette.services.core.backend_types import shares_addresses
from flannelette.services.core.family import FAMILIES, Network, family_of
from flannelette.services.core.leases.conflicts import KINDS, Claim, ConflictIndex, Loss, losses
from flannelette.services.core.leases.lease import Lease, Subnet, VxlanData, light_dataclass
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.backends.backend import Backend, NodeLinks
from flannelette.services.dataplane.links.desired import Device
from flannelette.services.dataplane.netlink.ipsec.values import DIR_OUT, IkeConnection, XfrmPolicy
from flannelette.services.dataplane.netlink.objects import RTN_BLACKHOLE, KernelObject, Route, packed_mac
from flannelette.services.dataplane.netlink.uapi import AF_INET6, LOOPBACK_IFINDEX
from flannelette.services.dataplane.peers.validation import (
    NO_ADDRESS,
    Bounds,
    OperatorLimits,
    Rejection,
    address_limits,
    overlaps_own,
    reject,
    reject_own,
)

Losses: TypeAlias = Mapping[tuple[str, int], Loss]
"""Losses by lease and IP version, see services/core/leases/conflicts.py."""

WHOLE: Final = frozenset(("no-subnet", "two-subnets", "backend"))
"""Rules about a lease as a whole, whatever its subnets are."""

_NONE: Final[Losses] = {}
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


@light_dataclass
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


def peer_of(lease: Lease, context: PeerContext, losses: Losses = _NONE, former: Lease | None = None) -> Peer:
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
    via = "" if overlay is context.overlays[0] else overlay.name
    return Peer(lease, objects, refusals, candidates, former, via)


def mark_of(lease: Lease) -> Hashable:
    """What a lease says of the backend that its node has in force."""
    return lease.backend_type, *(s.data.vni & 0xFFFF for s in lease.subnets if isinstance(s.data, VxlanData))


def _objects(subnets: Sequence[Subnet], overlay: Overlay, context: PeerContext) -> tuple[KernelObject, ...]:
    return tuple(overlay.backend.peer_objects(subnets, context.own_subnets, overlay.links)) if subnets else ()


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


@dataclass(frozen=True, slots=True)
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

    def __init__(self, node: str, known: Mapping[str, Peer] = MappingProxyType({})) -> None:
        """`known` are peers of another set: what they were before their nodes had another backend counts here too."""
        self.peers: dict[str, Peer] = {}
        self.own_losses: tuple[Loss, ...] = ()
        """Claims of the own lease that other nodes do not carry, because another lease has the older claim."""
        self._node = node
        self._context: PeerContext | None = None
        self._alone = dict(known)
        """Each peer as it is without conflicts; the own lease too, of which only the claims count."""
        self._conflicts: ConflictIndex | None = None
        self._lost: Losses = {}
        self._changed = set[str]()  # peers that had another backend

    def update(
        self, context: PeerContext, leases: Mapping[str, Lease], changed: Collection[str] | None = None
    ) -> PeerDelta:
        """Evaluates the leases that were `changed` since the last update, by name; None, or a new context: all.

        A peer whose lease is the same object is not evaluated again, unless the context is another one for it.
        """
        last, self._context = self._context, context
        is_same = last is not None and (context is last or context == last)
        is_alike = is_same or (last is not None and context.differs_by_own_subnets_only(last))
        names = changed if changed is not None and is_same else {**leases, **self._alone}  # as they lie in memory
        fresh: list[str] = []
        before: list[Peer] = []
        after: list[Peer] = []
        for name in names:
            lease, known = leases.get(name), self._alone.get(name)
            if known is not None:
                if known.lease is lease and (is_same or (is_alike and not _is_near_own(known, context))):
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
                self._alone[name] = peer_of(peer.lease, context)
                gone.add(name)
        self._changed -= gone
        return gone

    def _evaluate(self, lease: Lease, context: PeerContext, known: Peer | None) -> Peer:
        """The peer without conflicts. `known` is what it was."""
        if lease.node != self._node:
            return peer_of(lease, context, former=_former(lease, self.peers.get(lease.name, known), context))
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
                peer = peer_of(peer.lease, context, self._lost, peer.former)
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
    leases: Iterable[Lease], node: str, context: PeerContext, known: Mapping[str, Peer] = MappingProxyType({})
) -> Mapping[str, Peer]:
    """The peers that these leases make; `known` as PeerSet has it."""
    found = PeerSet(node, known)
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
