"""Says whose the addresses of a packet are, asks the kernel what it does with the packet, and puts that beside what
this node wants for the peer.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.backend_types import Tunnel
from flannelette.services.core.errors import InvalidInput, NotFound
from flannelette.services.core.family import FAMILIES, Address, Family, Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.diagnose.look import carrier_port
from flannelette.services.dataplane.diagnose.paths import protocols_of
from flannelette.services.dataplane.diagnose.pods import bridge_index, bridges_of
from flannelette.services.dataplane.diagnose.seen import (
    UDP,
    KernelSnapshot,
    Lookup,
    NeighbourState,
    PeerLookup,
    PeerPath,
    Subject,
    family_of_af,
    gateway_of,
    pod_address,
)
from flannelette.services.dataplane.kernel.programmer import ObjectCheck
from flannelette.services.dataplane.links import actual
from flannelette.services.dataplane.links.interfaces import LinkSpec, LinkState
from flannelette.services.dataplane.links.reconcile import device_commands
from flannelette.services.dataplane.netlink.objects import RTN_UNICAST, Route, WireguardPeer, XfrmPolicy
from flannelette.services.dataplane.peers import Peer, PeerContext


@frozen
class End:
    """One end of a packet's path."""

    address: Address
    node: str = ""
    """Node that has the address; empty: no lease says so."""
    peer: Peer | None = None
    """The other node that has it."""
    subnet: Network | None = None
    """Subnet of the lease that has the address."""
    is_here: bool = False
    """The address is this node's, or that of one of its pods."""
    is_host: bool = False
    """The address is one of this host itself, not of a pod."""


@frozen
class Ends:
    """Both, of one family."""

    source: End
    destination: End

    @property
    def family(self) -> Family:
        """The address family of the packet."""
        return family_of(self.destination.address)


@frozen
class Places:
    """The addresses of the node, its peers and this host."""

    node: str
    context: PeerContext
    peers: Iterable[Peer]
    held: Set[bytes] = frozenset()
    """Addresses of this host."""


def ends_of(places: Places, source: str, destination: str, version: int = 0) -> Ends:
    """What two texts mean, addresses or names of nodes, whose addresses are of this IP version (0: any, IPv4 first).

    Raises InvalidInput, NotFound.
    """
    there = _addresses(places, "destination", destination)
    here = _addresses(places, "source", source)
    pairs = [(a, b) for a in here for b in there if a.version == b.version and version in (0, a.version)]
    if not pairs:
        what = f"IPv{version} addresses" if version else "address family in common"
        raise InvalidInput(f"source {source} and destination {destination} have no {what}")
    a, b = pairs[0]
    if a == b:
        raise InvalidInput(f"source and destination are both {a}: no packet leaves for there")
    return Ends(_end(places, a), _end(places, b))


def _addresses(places: Places, field: str, text: str) -> list[Address]:
    """One, or those of a node in the overlay, IPv4 first."""
    try:
        return [ip_address(text)]
    except ValueError:
        pass
    if text and text == places.node:
        found = list(places.context.own_subnets)
    else:
        found = [s.cidr for peer in places.peers if text and peer.lease.node == text for s in peer.lease.subnets]
    if found:
        is_numbered = places.context.backend.numbers_devices
        return sorted((n[0] if is_numbered else gateway_of(n) for n in found), key=lambda a: a.version)
    raise NotFound(
        f"{field} {text!r} is no IP address, and no node with a lease has this name: `flannelette peers` lists them"
    )


def _end(places: Places, value: Address) -> End:
    is_host = value.packed in places.held
    for subnet in places.context.own_subnets:
        if value in subnet:
            return End(value, places.node, None, subnet, is_here=True, is_host=is_host)
    for peer in places.peers:  # also where this host has taken the address
        for each in peer.lease.subnets:
            if value in each.cidr:
                return End(value, peer.lease.node or peer.lease.name, peer, each.cidr)
    return End(value, places.node, is_here=True, is_host=True) if is_host else End(value)


AWAY, BACK, TUNNEL = "peer.route", "peer.return", "underlay.route"
"""What the package `diagnose` calls these lookups."""

_NO_TUNNEL: Final = Tunnel({}, 0)


@frozen
class OverlayDevice:
    """The device that carries packets to a peer, or takes them."""

    name: str
    spec: LinkSpec | None
    """The device as it shall be; None: it is of an earlier backend."""
    link: LinkState | None
    """The device as it is; None: there is none."""
    commands: Sequence[str] = ()
    """What would bring it into line."""


@frozen
class TraceScene:
    """The kernel, as far as it decides about the packet, at one moment."""

    ends: Ends
    context: PeerContext
    subject: Subject
    seen: KernelSnapshot
    """Answers of the kernel, those to `inner` and `outer` among others."""
    inner: Lookup
    """The packet itself: from a pod or this host, or as it comes in from the other node."""
    outer: Lookup | None = None
    """What carries it between the nodes; None: it travels as it is."""
    far: Address | None = None
    """The other node's address there."""
    path: PeerPath | None = None
    """The path to the other node; None: there is none, or it is not carried."""
    device: OverlayDevice | None = None
    """None: packets travel by the underlay's interface."""
    checks: Sequence[ObjectCheck] = ()
    """What this node has for the peer."""
    neighbours: Mapping[tuple[bytes, int], NeighbourState] = field(default_factory=dict)
    tunnel: Tunnel = _NO_TUNNEL
    strict: Set[int] = frozenset()
    """Interfaces with a strict reverse path filter: a packet comes in only where the route to its source leaves."""

    def hop(self, question: Lookup) -> tuple[bytes, int] | None:
        """The next hop of a packet that the kernel sends on: its address, and the interface."""
        return _hop(self.seen, question)


@frozen
class TraceRequest:
    """What this node has decided about the overlay."""

    context: PeerContext
    specs: Sequence[LinkSpec] = ()
    """Devices of the overlay, as they shall be."""
    foreign: Sequence[Route] = ()
    """Routes of other programs inside the network."""


async def look(
    inspector: Inspector, wanted: TraceRequest, ends: Ends, checks: Sequence[ObjectCheck], *, is_sender: bool
) -> TraceScene:
    """Asks the kernel for one half of the path. Raises Unavailable."""
    context, peer = wanted.context, (ends.destination if is_sender else ends.source).peer
    links = context.links
    path = path_of(context, peer, ends) if peer is not None else None
    tunnel = _tunnel(context, peer)
    subject = Subject(
        {n.family: n.cidr for n in context.network.families},
        {family_of(subnet): subnet for subnet in context.own_subnets},
        links.underlay,
        {f: d for f, d in links.devices.items() if path is not None and d.index == path.route.ifindex},
        tunnel.port,
        {path.lease} if path else frozenset(),
        (path,) if path else (),
        list,
        wanted.foreign,
    )
    addresses, every = await inspector.addresses(), await inspector.links()
    names = {index: each.name for index, each in every.items()}
    seen = KernelSnapshot(names, addresses, bridges_of(subject, addresses), links=every)
    bridge = bridge_index(subject, seen, ends.family)
    arrival = path.route.ifindex if path else links.underlay.index
    rules = {family: await inspector.rules(family) for family in FAMILIES}
    seen = replace(seen, policies=await inspector.policies(), rules=rules)
    inner = await _apart(inspector, seen, _inner(ends, arrival, bridge or 0, is_sender=is_sender))
    port = 0 if peer is None or peer.via else carrier_port(context)
    outer = _outer(path, context, port, is_sender=is_sender)
    places = [(f, i) for f in (ends.family,) for i in dict.fromkeys((0, inner.iif if f.version == 4 else 0))]
    asked = [inner, *([outer] if outer else [])]
    arrivals = [each for each in asked if each.iif and each.src]
    beside = [Lookup(each.family, each.src) for each in arrivals]
    beside += [Lookup(family, pod_address(own)) for family, own in subject.own.items()]
    beside += [Lookup(family_of(own), own.packed) for own in links.underlay.addresses]
    filters = await inspector.reverse_path_filters([each.iif for each in arrivals if each.family.version == 4])
    seen = replace(
        seen,
        forwarding=await inspector.forwarding(places),
        answers=await inspector.lookups([*asked, *beside]),
        routes={family: await inspector.routes(family) for family in FAMILIES},
        ways=tuple(_ways(subject, path, inner, outer, is_sender=is_sender)) if path else (),
    )
    hops = [hop for each in asked if (hop := _hop(seen, each)) is not None]
    neighbours = await inspector.neighbours(hops)
    fixed = {place: state for place, state in neighbours.items() if state.is_permanent}
    return TraceScene(
        ends,
        context,
        subject,
        replace(seen, neighbours=fixed),
        inner,
        outer,
        path.public if path else None,
        path,
        await _device(wanted, path),
        checks,
        neighbours,
        tunnel,
        {index for index, value in filters.items() if value == 1},
    )


def path_of(context: PeerContext, peer: Peer, ends: Ends) -> PeerPath | None:
    """How packets of this family get to the peer; None: it is not carried."""
    subnet = peer.lease.subnet(ends.family)
    routes = (item for item in peer.objects if isinstance(item, Route) and family_of_af(item.family) is ends.family)
    route = next((r for r in routes if subnet and r.dst == subnet.cidr.network_address.packed), None)
    if subnet is None or route is None:
        return None
    ends_there = [p.endpoint for p in peer.objects if isinstance(p, WireguardPeer) and p.ifindex == route.ifindex]
    public = ip_address(ends_there[0]) if any(ends_there) else subnet.public_address
    is_direct = route.ifindex == context.links.underlay.index
    is_policy = any(isinstance(item, XfrmPolicy) for item in peer.objects)
    far = None if is_direct and not is_policy else public
    return PeerPath(peer.lease.name, peer.lease.node, subnet.cidr, route, far)


async def _apart(inspector: Inspector, seen: KernelSnapshot, packet: Lookup) -> Lookup:
    """The packet, of the protocol that rules of policy routing send elsewhere, if they do so with any."""
    variants = [replace(packet, protocol=number) for number in protocols_of(seen, packet.family)]
    answers = await inspector.lookups([packet, *variants]) if variants else {}
    return next((each for each in variants if answers.get(each) != answers.get(packet)), packet)


def _inner(ends: Ends, arrival: int, bridge: int, *, is_sender: bool) -> Lookup:
    source, destination = ends.source.address.packed, ends.destination.address.packed
    if is_sender:
        return Lookup(ends.family, destination, source, 0 if ends.source.is_host else bridge)
    if ends.source.is_here:
        return Lookup(ends.family, destination)
    return Lookup(ends.family, destination, source, arrival)


def _outer(path: PeerPath | None, context: PeerContext, port: int, *, is_sender: bool) -> Lookup | None:
    if path is None or path.public is None:
        return None
    family, underlay = family_of(path.public), context.links.underlay
    here, there = underlay.address(family), path.public.packed
    if here is None:
        return None
    ends = (there, here.packed, 0) if is_sender else (here.packed, there, underlay.index)
    return Lookup(family, *ends, *((UDP, port) if port else ()))


def _ways(
    subject: Subject, path: PeerPath, inner: Lookup, outer: Lookup | None, *, is_sender: bool
) -> list[PeerLookup]:
    network = subject.networks[inner.family]
    found = [PeerLookup(AWAY if is_sender else BACK, inner, network, path)]
    if is_sender and outer is not None:
        found.append(PeerLookup(TUNNEL, outer, network, path))
    return found


def _hop(seen: KernelSnapshot, question: Lookup) -> tuple[bytes, int] | None:
    answer = seen.answers.get(question)
    if isinstance(answer, Route) and answer.ifindex and answer.route_type == RTN_UNICAST:
        return answer.gateway or question.dst, answer.ifindex
    return None


async def _device(wanted: TraceRequest, path: PeerPath | None) -> OverlayDevice | None:
    links = wanted.context.overlays
    found = [d for each in links for d in each.links.devices.values() if path and d.index == path.route.ifindex]
    if not found:
        return None
    name = found[0].name
    spec = next((each for each in wanted.specs if each.name == name), None)
    known = {spec.family: found[0]} if spec else {}
    commands = await device_commands([spec], known) if spec else []
    return OverlayDevice(name, spec, await actual.find_link(name), commands)


def _tunnel(context: PeerContext, peer: Peer | None) -> Tunnel:
    return (None if peer is None or peer.via else context.network.tunnel()) or _NO_TUNNEL
