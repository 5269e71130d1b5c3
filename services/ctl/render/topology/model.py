"""Nodes and links of a cluster with their health, from what lease service and dataplanes answer."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from ipaddress import ip_address, ip_network
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.lease.v1 import lease_pb2
from flannelette.services.core.backend_options import CLOUDS
from flannelette.services.ctl.units import count, in_order, phrase

MOST_DRAWN: Final = 8
"""Nodes that are drawn one by one, with every link."""
_UNDERLAY_BITS: Final = {4: 24, 6: 64}
_DIRECT: Final = ("host-gw", "alloc", *CLOUDS)


class Health(Enum):
    """The health of a node or a link, the best first; the value is the word for it."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    DEGRADED = "degraded"
    BROKEN = "broken"
    AWAY = "no answer"


MARKS: Final = {
    Health.HEALTHY: "✓",
    Health.UNKNOWN: "?",
    Health.DEGRADED: "!",
    Health.BROKEN: "✗",
    Health.AWAY: "✗",
}
COLOURS: Final = {
    Health.HEALTHY: "#1a7f37",
    Health.UNKNOWN: "#6e7781",
    Health.DEGRADED: "#9a6700",
    Health.BROKEN: "#cf222e",
    Health.AWAY: "#8b1a8b",
}
_ORDER: Final = list(Health)


@dataclass(frozen=True, slots=True)
class Node:
    """A node that holds a lease."""

    name: str
    subnets: tuple[str, ...]
    address: str
    """In the underlay; empty: not known."""
    backend: str
    health: Health

    @property
    def underlay(self) -> str:
        """The /24 or /64 of its address, as a place: which prefix the hosts have, no lease says."""
        if not self.address:
            return "?"
        address = ip_address(self.address)
        return str(ip_network((address, _UNDERLAY_BITS[address.version]), strict=False))


@dataclass(frozen=True, slots=True)
class Link:
    """What carries packets between two nodes; the names are in the order of the nodes."""

    ends: tuple[str, str]
    direct: bool
    """By the routes of the underlay, without a tunnel."""
    health: Health
    remark: str
    """The round-trip time, or what is wrong; empty: not known."""

    @property
    def is_bad(self) -> bool:
        """Packets are lost, or may be."""
        return _ORDER.index(self.health) > _ORDER.index(Health.UNKNOWN)


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes in the same part of the underlay, with the same backend."""

    underlay: str
    backend: str
    nodes: tuple[Node, ...]

    @property
    def healths(self) -> Counter[Health]:
        """How many nodes are how."""
        return Counter(node.health for node in self.nodes)


@dataclass(frozen=True, slots=True)
class Topology:
    """The nodes of a cluster, and the links between them."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def is_small(self) -> bool:
        """Every node and link can be drawn."""
        return len(self.nodes) <= MOST_DRAWN

    @property
    def groups(self) -> list[Group]:
        """All nodes, the largest group first."""
        found: defaultdict[tuple[str, str], list[Node]] = defaultdict(list)
        for node in self.nodes:
            found[node.underlay, node.backend].append(node)
        groups = [Group(*key, tuple(nodes)) for key, nodes in found.items()]
        return sorted(groups, key=lambda group: -len(group.nodes))

    @property
    def unwell(self) -> list[Node]:
        """Nodes that are neither healthy nor unknown, the gravest first."""
        found = [node for node in self.nodes if _ORDER.index(node.health) > _ORDER.index(Health.UNKNOWN)]
        return sorted(found, key=lambda node: -_ORDER.index(node.health))

    @property
    def bad_links(self) -> list[Link]:
        """The links on which packets are lost, or may be, the gravest first; none to a node that does not answer."""
        away = {node.name for node in self.nodes if node.health is Health.AWAY}
        found = [link for link in self.links if link.is_bad and not away.intersection(link.ends)]
        return sorted(found, key=lambda link: -_ORDER.index(link.health))


def summary(topology: Topology) -> str:
    """`3 nodes, 3 links: 3 tunnelled; 1 broken`."""
    direct = sum(link.direct for link in topology.links)
    tunnelled = len(topology.links) - direct
    paths = phrase(f"{direct:,} direct" if direct else "", f"{tunnelled:,} tunnelled" if tunnelled else "")
    states = phrase(*_states([link.health for link in topology.links]))
    links = count(len(topology.links), "link")
    return f"{count(len(topology.nodes), 'node')}, {links}" + (f": {paths}; {states}" if topology.links else "")


def _states(found: Sequence[Health]) -> Iterator[str]:
    for each in Health:
        if number := found.count(each):
            yield f"{number:,} {each.value}"


def read_topology(
    leases: lease_pb2.ListLeasesResponse,
    known: Iterable[lease_pb2.Node],
    asked: Mapping[str, Health],
    peers: Mapping[str, tuple[str, Sequence[pb.Peer]]],
) -> Topology:
    """The cluster; `asked` is by the name of the node, and `peers` too, each with the underlay interface of its node.

    A link of which no dataplane tells is there, and its health is unknown.
    """
    connected = {node.name: node for node in known}
    nodes = [_node(lease, connected, asked, leases) for lease in leases.leases if lease.node or not lease.reserved]
    nodes.sort(key=lambda node: in_order(node.name))
    backends = {node.name: node.backend for node in nodes}
    told: dict[frozenset[str], Link] = {}
    for name, (interface, of_node) in peers.items():
        for peer in of_node:
            ends = frozenset((name, peer.node or peer.name))
            link = _link((name, peer.node or peer.name), interface, peer, backends.get(name, ""))
            other = told.get(ends)
            if other is None or _ORDER.index(link.health) > _ORDER.index(other.health):
                told[ends] = link
    return Topology(tuple(nodes), tuple(_links(nodes, told)))


def _links(nodes: Sequence[Node], told: Mapping[frozenset[str], Link]) -> Iterator[Link]:
    for number, first in enumerate(nodes):
        for second in nodes[number + 1 :]:
            ends = (first.name, second.name)
            link = told.get(frozenset(ends))
            if link is None:
                yield Link(ends, first.backend in _DIRECT, Health.UNKNOWN, "")
            else:
                yield Link(ends, link.direct, link.health, link.remark)


def _node(
    lease: lease_pb2.Lease,
    connected: Mapping[str, lease_pb2.Node],
    asked: Mapping[str, Health],
    leases: lease_pb2.ListLeasesResponse,
) -> Node:
    name = lease.node or lease.name
    address = next((subnet.public_address for subnet in lease.subnets if subnet.public_address), "")
    backend = lease.backend_type or leases.network.backend_type
    health = asked.get(name) or _health(connected.get(name))
    return Node(name, tuple(subnet.cidr for subnet in lease.subnets), address, backend, health)


def _health(node: lease_pb2.Node | None) -> Health:
    if node is None or not node.HasField("connected"):
        return Health.UNKNOWN
    if not node.connected:
        return Health.AWAY
    return Health.DEGRADED if node.failed_count or node.behind else Health.HEALTHY


def _link(ends: tuple[str, str], interface: str, peer: pb.Peer, backend: str) -> Link:
    """A link as the dataplane of its first end tells it; one of an earlier release does not tell its way."""
    routes = [each for each in peer.objects if each.kind == "route"]
    direct = any(each.device == interface for each in routes) if routes else backend in _DIRECT
    return Link(ends, direct, *_state(peer))


def _state(peer: pb.Peer) -> tuple[Health, str]:
    if peer.state == pb.PEER_STATE_IGNORED:
        return Health.UNKNOWN, "not linked"
    if peer.state != pb.PEER_STATE_PROGRAMMED:
        return Health.BROKEN, pb.PeerState.Name(peer.state).removeprefix("PEER_STATE_").lower()
    probes = [probe for probe in peer.probes if probe.layer == pb.PROBE_LAYER_OVERLAY]
    if any(probe.state == pb.ANSWERING_SILENT for probe in probes):
        return Health.BROKEN, "silent"
    if narrow := [probe for probe in probes if probe.narrow]:
        return Health.DEGRADED, f"{narrow[0].largest_packet} bytes at most"
    if any(probe.checksum_offload == pb.CHECKSUM_OFFLOAD_BROKEN for probe in probes):
        return Health.BROKEN, "no TCP, no UDP"
    answered = [probe for probe in probes if probe.state == pb.ANSWERING_YES]
    if not answered:
        return Health.UNKNOWN, ""
    slowest = max(probe.round_trip_microseconds for probe in answered) / 1000
    if lost := max(probe.loss for probe in answered):
        return Health.DEGRADED, f"{lost:.0%} lost"
    return Health.HEALTHY, f"{slowest:.2f} ms" if slowest else "no pings"
