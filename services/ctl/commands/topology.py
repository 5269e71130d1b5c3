"""`flannelette topology`: the nodes of a cluster and the links between them, as text, JSON, SVG, DOT or Mermaid.

The answers of the services become a Topology, of which each format is a function. Up to eight nodes are drawn one by
one, more in groups. SVG is laid out here, since a drawing that needs Graphviz on the machine would not be there when
it is needed; for another layout, `-o dot` is for Graphviz (https://graphviz.org/doc/info/lang.html), and `-o mermaid`
for Markdown (https://mermaid.js.org/syntax/flowchart.html).
"""

import asyncio
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from ipaddress import ip_address, ip_network
from itertools import combinations
from typing import Any, Final
from xml.sax.saxutils import escape, quoteattr

from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.lease.v1 import lease_pb2
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.backend_types import CLOUDS
from flannelette.services.core.formats.text import count, visible
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.answers import assess_all
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, Channels, of_each, or_failure, with_hint
from flannelette.services.ctl.connect.contexts import Nodes, lease_services
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.problems import Overall, health_of
from flannelette.services.ctl.screen import Cell, Screen, Width, fold, in_order, lines, phrase, table

_AT_ONCE: Final = 8
"""Lists of peers that are read at a time: with 1,000 nodes one has half a megabyte."""


_MOST_DRAWN: Final = 8
"""Nodes that are drawn one by one, with every link."""
_UNDERLAY_BITS: Final = {4: 24, 6: 64}
_DIRECT: Final = ("host-gw", "alloc", *CLOUDS)


_MARKS: Final = {
    Overall.HEALTHY: "✓",
    Overall.UNKNOWN: "?",
    Overall.DEGRADED: "!",
    Overall.BROKEN: "✗",
    Overall.AWAY: "✗",
}
_COLOURS: Final = {
    Overall.HEALTHY: "#1a7f37",
    Overall.UNKNOWN: "#6e7781",
    Overall.DEGRADED: "#9a6700",
    Overall.BROKEN: "#cf222e",
    Overall.AWAY: "#8b1a8b",
}


@frozen
class Node:
    """A node that holds a lease."""

    name: str
    subnets: tuple[str, ...]
    address: str
    """Address of the node in the underlay; empty: not known."""
    backend: str
    health: Overall

    @property
    def underlay(self) -> str:
        """The /24 or /64 of its address, as a place: which prefix the hosts have, no lease says."""
        if not self.address:
            return "?"
        address = ip_address(self.address)
        return str(ip_network((address, _UNDERLAY_BITS[address.version]), strict=False))


@frozen
class Link:
    """What carries packets between two nodes; the names are in the order of the nodes."""

    ends: tuple[str, str]
    direct: bool
    """The routes of the underlay carry the packets, without a tunnel."""
    health: Overall
    remark: str
    """The round-trip time, and the largest packet where that is less than it should be; or what is wrong; empty: not
    known."""
    mtu: int = 0
    """Bytes of the largest packet that should pass; 0: not known, also below."""
    largest_packet: int = 0
    """Bytes of the largest one that has passed."""

    @property
    def is_narrow(self) -> bool:
        """Whether not all passes that should."""
        return 0 < self.largest_packet < self.mtu


@frozen
class Group:
    """Nodes in the same part of the underlay, with the same backend."""

    underlay: str
    backend: str
    nodes: tuple[Node, ...]

    @property
    def healths(self) -> Counter[Overall]:
        """How many nodes are how."""
        return Counter(node.health for node in self.nodes)


@frozen
class Topology:
    """The nodes of a cluster, and the links between them."""

    nodes: tuple[Node, ...]
    links: tuple[Link, ...]

    @property
    def is_small(self) -> bool:
        """Every node and link can be drawn."""
        return len(self.nodes) <= _MOST_DRAWN

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
        found = [node for node in self.nodes if node.health.is_bad]
        return sorted(found, key=lambda node: -node.health.gravity)

    @property
    def bad_links(self) -> list[Link]:
        """The links on which packets are lost, or may be, the gravest first; none to a node that does not answer."""
        away = {node.name for node in self.nodes if node.health is Overall.AWAY}
        found = [link for link in self.links if link.health.is_bad and not away.intersection(link.ends)]
        return sorted(found, key=lambda link: -link.health.gravity)


@command(
    scope="networks",
    formats=("text", "svg", "dot", "mermaid", "json"),
    examples=("flannelette topology", "flannelette topology -o svg > cluster.svg"),
)
async def topology(nodes: Nodes, screen: Screen) -> int:
    """Draw the nodes and the links between them.

    Asks the lease service, and every node of the context for its links. Up to
    8 nodes are drawn one by one, more in groups by underlay and backend, with
    what is not well. dot is for Graphviz, mermaid for Markdown. Exits with 1
    if a node or a link is not well.
    """
    async with Channels() as channels:
        found = await _ask_topology(nodes, channels)
    drawings = {"svg": svg, "dot": dot, "mermaid": mermaid}
    if screen.output in drawings:
        print(drawings[screen.output](found), end="")
    elif screen.json:
        screen.show_json(_document(found))
    else:
        screen.show(topology_text(found, screen.width))
    return 1 if found.unwell or found.bad_links else 0


async def _ask_topology(nodes: Nodes, channels: Channels) -> Topology:
    """The cluster as the services of these nodes know it. Raises CallFailed: no lease service answers."""
    (leases, known), asked = await asyncio.gather(_leases_and_nodes(nodes, channels), assess_all(nodes, channels))
    call = pb.ListPeersRequest()

    async def peers_of(_: str, targets: Targets) -> Sequence[pb.Peer]:
        answer = await or_failure(
            channels.ask(targets["dataplane"], lambda c: DataplaneServiceStub(c).ListPeers(call), LIST_SECONDS)
        )
        return () if isinstance(answer, CallFailed) else answer.peers  # the health of the node says why

    by_name = {health.name or name: health_of(health) for name, health in asked.items()}
    lists = await of_each(nodes, peers_of, _AT_ONCE)
    peers = {health.name or name: (_interface(health), lists[name]) for name, health in asked.items()}
    return read_topology(leases, known, by_name, peers)


async def _leases_and_nodes(
    nodes: Nodes, channels: Channels
) -> tuple[lease_pb2.ListLeasesResponse, list[lease_pb2.Node]]:
    """Asks for the lease table and the nodes; the first lease service that answers decides. Raises CallFailed if none
    does.
    """
    failure: CallFailed | None = None
    for target in lease_services(nodes):
        try:
            return await _ask_lease_service(target, channels)
        except CallFailed as error:
            failure = failure or with_hint(target, error)
    assert failure is not None  # noqa: S101 - there is at least one node
    raise failure


async def _ask_lease_service(
    target: Target, channels: Channels
) -> tuple[lease_pb2.ListLeasesResponse, list[lease_pb2.Node]]:
    leases, nodes = await asyncio.gather(
        channels.ask(target, lambda c: LeaseServiceStub(c).ListLeases(lease_pb2.ListLeasesRequest()), LIST_SECONDS),
        channels.ask(target, lambda c: LeaseServiceStub(c).ListNodes(lease_pb2.ListNodesRequest()), LIST_SECONDS),
    )
    return leases, list(nodes.nodes)


def _interface(health: NodeHealth) -> str:
    answer = health.answers.dataplane
    return "" if isinstance(answer, CallFailed) else answer.status.underlay.interface


def _document(found: Topology) -> Mapping[str, Any]:
    return {
        "nodes": [{**asdict(node), "health": node.health.name} for node in found.nodes],
        "links": [{**asdict(link), "health": link.health.name} for link in found.links],
    }


def _summary(topology: Topology) -> str:
    """`3 nodes, 3 links: 3 tunnelled; 1 broken`."""
    direct = sum(link.direct for link in topology.links)
    tunnelled = len(topology.links) - direct
    paths = phrase(f"{direct:,} direct" if direct else "", f"{tunnelled:,} tunnelled" if tunnelled else "")
    states = phrase(*_states([link.health for link in topology.links]))
    links = count(len(topology.links), "link")
    return f"{count(len(topology.nodes), 'node')}, {links}" + (f": {paths}; {states}" if topology.links else "")


def _states(found: Sequence[Overall]) -> Iterator[str]:
    for each in Overall:
        if number := found.count(each):
            yield f"{number:,} {each.value}"


def read_topology(
    leases: lease_pb2.ListLeasesResponse,
    known: Iterable[lease_pb2.Node],
    asked: Mapping[str, Overall],
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
            if other is None or _gravity(link) > _gravity(other):
                told[ends] = link
    return Topology(tuple(nodes), tuple(_links(nodes, told)))


def _gravity(link: Link) -> tuple[int, bool]:
    return link.health.gravity, link.is_narrow


def _links(nodes: Sequence[Node], told: Mapping[frozenset[str], Link]) -> Iterator[Link]:
    for number, first in enumerate(nodes):
        for second in nodes[number + 1 :]:
            ends = (first.name, second.name)
            link = told.get(frozenset(ends))
            if link is None:
                yield Link(ends, first.backend in _DIRECT, Overall.UNKNOWN, "")
            else:
                yield replace(link, ends=ends)


def _node(
    lease: lease_pb2.Lease,
    connected: Mapping[str, lease_pb2.Node],
    asked: Mapping[str, Overall],
    leases: lease_pb2.ListLeasesResponse,
) -> Node:
    name = lease.node or lease.name
    address = next((subnet.public_address for subnet in lease.subnets if subnet.public_address), "")
    backend = lease.backend_type or leases.network.backend_type
    health = asked.get(name) or _health(connected.get(name))
    return Node(name, tuple(subnet.cidr for subnet in lease.subnets), address, backend, health)


def _health(node: lease_pb2.Node | None) -> Overall:
    if node is None or not node.HasField("connected"):
        return Overall.UNKNOWN
    if not node.connected:
        return Overall.AWAY
    return Overall.DEGRADED if node.failed_count or node.behind else Overall.HEALTHY


def _link(ends: tuple[str, str], interface: str, peer: pb.Peer, backend: str) -> Link:
    """A link as the dataplane of its first end tells it; one of an earlier release does not tell its way."""
    routes = [each for each in peer.objects if each.kind == "route"]
    direct = any(each.device == interface for each in routes) if routes else backend in _DIRECT
    probes = [each for each in _overlay(peer) if each.largest_packet]
    narrowest = min(probes, key=lambda each: each.largest_packet - each.mtu, default=pb.Probe())
    return Link(ends, direct, *_state(peer), narrowest.mtu, narrowest.largest_packet)


def _overlay(peer: pb.Peer) -> list[pb.Probe]:
    return [probe for probe in peer.probes if probe.layer == pb.PROBE_LAYER_OVERLAY]


def _state(peer: pb.Peer) -> tuple[Overall, str]:
    if peer.state == pb.PEER_STATE_IGNORED:
        return Overall.UNKNOWN, "not linked"
    if peer.state != pb.PEER_STATE_PROGRAMMED:
        return Overall.BROKEN, pb.PeerState.Name(peer.state).removeprefix("PEER_STATE_").lower()
    probes = _overlay(peer)
    if any(probe.state == pb.ANSWERING_SILENT for probe in probes):
        return Overall.BROKEN, "silent"
    if narrow := [probe for probe in probes if probe.narrow]:
        return Overall.DEGRADED, f"{narrow[0].largest_packet} bytes at most"
    if any(probe.checksum_offload == pb.CHECKSUM_OFFLOAD_BROKEN for probe in probes):
        return Overall.BROKEN, "no TCP, no UDP"
    answered = [probe for probe in probes if probe.state == pb.ANSWERING_YES]
    if not answered:
        return Overall.UNKNOWN, ""
    slowest = max(probe.round_trip_microseconds for probe in answered) / 1000
    if lost := max(probe.loss for probe in answered):
        return Overall.DEGRADED, f"{lost:.0%} lost"
    part = next((f", {each.largest_packet} of {each.mtu} bytes" for each in answered if each.route_mtu), "")
    return Overall.HEALTHY, (f"{slowest:.2f} ms" if slowest else "no pings") + part


_MOST: Final = 20
"""Nodes or links that are listed."""
_ALL: Final = _MOST_DRAWN * (_MOST_DRAWN - 1) // 2
_STYLES: Final = {
    Overall.HEALTHY: "green",
    Overall.UNKNOWN: "dim",
    Overall.DEGRADED: "yellow",
    Overall.BROKEN: "red",
    Overall.AWAY: "red",
}


def topology_text(topology: Topology, width: Width) -> Text:
    """Nodes and links one by one, or groups of nodes and what is not well."""
    parts = [fold(Text(_summary(topology), style="bold"), width)]
    if topology.is_small:
        parts += [_nodes_text(topology.nodes, width), _links_text(topology.links, width)]
    else:
        parts += [_groups_text(topology, width)]
        parts += [_nodes_text(topology.unwell, width)] if topology.unwell else []
        parts += [_links_text(topology.bad_links, width)] if topology.bad_links else []
    return lines(line for part in parts for line in ("", part))[1:]


def _groups_text(topology: Topology, width: Width) -> Text:
    rows: list[tuple[Cell, ...]] = []
    for group in topology.groups:
        numbers = group.healths
        rows.append(
            (
                (group.underlay,),
                (group.backend,),
                (f"{len(group.nodes):,}",),
                *((_number(numbers[each], each),) for each in Overall),
            )
        )
    return table(("UNDERLAY", "BACKEND", "NODES", *(each.value.upper() for each in Overall)), rows, width)


def _number(number: int, health: Overall) -> Text:
    return Text(f"{number:,}", style=_STYLES[health]) if number else Text("")


def _nodes_text(nodes: Sequence[Node], width: Width) -> Text:
    rows = [
        ((node.name,), (_word(node.health),), node.subnets, (node.address,), (node.backend,))
        for node in nodes[:_MOST]
    ]
    return _limited(table(("NODE", "STATE", "SUBNET", "ADDRESS", "BACKEND"), rows, width), len(nodes), "node")


def _links_text(links: Sequence[Link], width: Width) -> Text:
    most = len(links) if len(links) <= _ALL else _MOST
    rows = [
        ((f"{link.ends[0]} - {link.ends[1]}",), ("direct" if link.direct else "tunnelled",), (_word(link.health),),
         (link.remark,))
        for link in links[:most]
    ]  # fmt: skip
    return _limited(table(("LINK", "PATH", "STATE", "REMARK"), rows, width), len(links), "link", most)


def _limited(text: Text, number: int, noun: str, most: int = _MOST) -> Text:
    return lines([text, f"and {number - most:,} more {noun}s"]) if number > most else text


def _word(health: Overall) -> Text:
    return Text(health.value, style=_STYLES[health])


_MOST_UNWELL = 40
"""Nodes beside the groups, and links of theirs."""


@frozen
class _Vertex:
    key: str
    rows: tuple[str, ...]
    health: Overall
    place: str
    """The part of the underlay that it is drawn in."""


@frozen
class _Edge:
    ends: tuple[str, str]
    label: str
    direct: bool
    health: Overall


def dot(topology: Topology) -> str:
    """An undirected graph for `dot`, `neato` and the like."""
    vertices, edges = _graph(topology)
    out = ["graph flannelette {", '  node [shape=box, fontname="sans-serif"];', '  edge [fontname="sans-serif"];']
    for number, (place, inside) in enumerate(_places(vertices)):
        out += [f"  subgraph cluster_{number} {{", f"    label={_quoted('underlay ' + place)};"]
        out += [
            f"    {_quoted(each.key)} [label={_quoted(*each.rows)}, color={_quoted(_COLOURS[each.health])}];"
            for each in inside
        ]
        out.append("  }")
    for edge in edges:
        style = "solid" if edge.direct else "dashed"
        ends = " -- ".join(map(_quoted, edge.ends))
        out.append(f"  {ends} [label={_quoted(edge.label)}, style={style}, color={_quoted(_COLOURS[edge.health])}];")
    return "\n".join([*out, "}", ""])


def mermaid(topology: Topology) -> str:
    """A flowchart, as Markdown renderers draw it."""
    vertices, edges = _graph(topology)
    names = {vertex.key: f"n{number}" for number, vertex in enumerate(vertices)}
    out = ["flowchart LR"]
    for number, (place, inside) in enumerate(_places(vertices)):
        out.append(f"  subgraph u{number}[{_mermaid('underlay ' + place)}]")
        out += [f"    {names[each.key]}[{_mermaid(*each.rows)}]:::{each.health.name.lower()}" for each in inside]
        out.append("  end")
    for edge in edges:
        first, second = (names[end] for end in edge.ends)
        label = f"|{_mermaid(edge.label)}|" if edge.label else ""
        out.append(f"  {first} {'---' if edge.direct else '-.-'}{label} {second}")
    for index, edge in enumerate(edges):
        if edge.health is not Overall.HEALTHY:
            out.append(f"  linkStyle {index} stroke:{_COLOURS[edge.health]}")
    out += [f"  classDef {each.name.lower()} stroke:{_COLOURS[each]},stroke-width:2px" for each in Overall]
    return "\n".join([*out, ""])


def _graph(topology: Topology) -> tuple[list[_Vertex], list[_Edge]]:
    if topology.is_small:
        return [_vertex(node) for node in topology.nodes], [_edge(link) for link in topology.links]
    unwell = topology.unwell[:_MOST_UNWELL]
    bad = topology.bad_links[:_MOST_UNWELL]
    shown = {node.name for node in unwell} | {end for link in bad for end in link.ends}
    alone = [node for node in topology.nodes if node.name in shown]
    groups = topology.groups
    vertices = [_group_vertex(group, sum(node in group.nodes for node in alone)) for group in groups]
    direct = all(link.direct for link in topology.links)
    between = [
        _Edge((_key(one), _key(other)), "direct" if direct else "", direct, Overall.HEALTHY)
        for one, other in combinations(groups, 2)
    ]
    return vertices + [_vertex(node) for node in alone], between + [_edge(link) for link in bad]


def _vertex(node: Node) -> _Vertex:
    state = f"{_MARKS[node.health]} {node.health.value}"
    return _Vertex(node.name, (node.name, *node.subnets, node.backend, state), node.health, node.underlay)


def _group_vertex(group: Group, shown_alone: int) -> _Vertex:
    numbers = group.healths
    states = [f"{numbers[each]:,} {each.value} {_MARKS[each]}" for each in Overall if numbers[each]]
    title = f"{len(group.nodes):,} nodes, {group.backend}"
    worst = [each for each in Overall if numbers[each]][-1]
    more = [f"{shown_alone} of them beside"] if shown_alone else []
    return _Vertex(_key(group), (title, *states, *more), worst, group.underlay)


def _key(group: Group) -> str:
    return f"{group.underlay} {group.backend}"


def _edge(link: Link) -> _Edge:
    mark = f"{_MARKS[link.health]} " if link.health.is_bad else ""
    return _Edge(link.ends, f"{mark}{link.remark}", link.direct, link.health)


def _places(vertices: Sequence[_Vertex]) -> Iterator[tuple[str, list[_Vertex]]]:
    for place in dict.fromkeys(vertex.place for vertex in vertices):
        yield place, [vertex for vertex in vertices if vertex.place == place]


def _quoted(*rows: str) -> str:
    return '"' + "\\n".join(visible(row).replace("\\", "\\\\").replace('"', '\\"') for row in rows) + '"'


def _mermaid(*rows: str) -> str:
    return '"' + "<br/>".join(map(_mermaid_row, rows)) + '"'


def _mermaid_row(row: str) -> str:
    return "".join(c if c not in '"#<>&`' else f"#{ord(c)};" for c in visible(row))


_WIDTH: Final = 1000
_BOX: Final = (190, 86)
_TOP: Final = 96
"""Height of title and legend."""
_CARD: Final = (476, 44)
"""Width of a group's card, and height of its head."""
_DOT: Final = 18
"""Side of the square of a node in a card, with its gap."""
_NEAR: Final = 450
"""A link between neighbours, which no diagonal crosses, is shorter."""
_MOST_LABELS: Final = 15
"""Links that all have their remark written on them; of more links, only the bad ones have."""
_MOST_LISTED: Final = 12

_Point = tuple[float, float]


def svg(topology: Topology) -> str:
    """One document, in any viewer; nothing is said by colour alone."""
    height, body = _circle(topology) if topology.is_small else _cards(topology)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
        f'height="{height:.0f}" font-family="DejaVu Sans, Verdana, sans-serif" font-size="13">'
    )
    title = f"<title>{escape(_summary(topology))}</title>"
    back = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, title, back, *_legend(topology), *body, "</svg>", ""])


def _legend(topology: Topology) -> Iterator[str]:
    yield _text((24, 36), _summary(topology), size=15, bold=True)
    x = 24.0
    for health in Overall:
        yield _mark((x + 8, 64), health)
        yield _text((x + 22, 68), health.value)
        x += 40 + 8 * len(health.value)
    for words, dashes in (("direct", ""), ("tunnelled", "7 4")):
        yield _line((x, 64), (x + 36, 64), "#24292f", dashes, 2)
        yield _text((x + 44, 68), words)
        x += 70 + 8 * len(words)


def _circle(topology: Topology) -> tuple[float, list[str]]:
    count = len(topology.nodes)
    radius_x, radius_y = (340, max(120, 52 * count)) if count > 1 else (0, 0)
    middle = (_WIDTH / 2, _TOP + radius_y + _BOX[1])
    places = {
        node.name: (
            middle[0] + radius_x * math.sin(2 * math.pi * number / count),
            middle[1] - radius_y * math.cos(2 * math.pi * number / count),
        )
        for number, node in enumerate(topology.nodes)
    }
    body = [part for link in topology.links for part in _drawn(link, places)]
    has_labels = len(topology.links) <= _MOST_LABELS
    bad = topology.bad_links
    labelled = [
        link for link in topology.links if link.remark and (link in bad or (has_labels and not link.health.is_bad))
    ]
    body += [part for link in labelled for part in _label(link, places)]
    body += [part for node in topology.nodes for part in _box(node, places[node.name])]
    return middle[1] + radius_y + _BOX[1], body


def _drawn(link: Link, places: dict[str, _Point]) -> Iterator[str]:
    first, second = (places[end] for end in link.ends)
    yield _line(first, second, _COLOURS[link.health], "" if link.direct else "7 4", 3 if link.health.is_bad else 1.5)


def _label(link: Link, places: dict[str, _Point]) -> Iterator[str]:
    (x1, y1), (x2, y2) = (places[end] for end in link.ends)
    part = 0.5 if math.dist((x1, y1), (x2, y2)) < _NEAR else 0.42  # in the middle of a diagonal others cross it
    x, y = x1 + (x2 - x1) * part, y1 + (y2 - y1) * part
    words = f"{_MARKS[link.health]} {link.remark}" if link.health.is_bad else link.remark
    width = 8.2 * len(words) + 8
    yield f'<rect x="{x - width / 2:.1f}" y="{y - 11:.1f}" width="{width:.1f}" height="20" rx="4" fill="#ffffff"/>'
    yield _text((x, y + 4), words, colour=_COLOURS[link.health], bold=link.health.is_bad, anchor="middle")


def _box(node: Node, place: _Point) -> Iterator[str]:
    colour, (width, height) = _COLOURS[node.health], _BOX
    x, y = place[0] - width / 2, place[1] - height / 2
    yield (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width}" height="{height}" rx="8" fill="#f6f8fa" '
        f'stroke="{colour}" stroke-width="2.5"/>'
    )
    yield _text((x + 12, y + 23), _short(node.name, 20), size=15, bold=True)
    yield _text((x + 12, y + 41), _short(" ".join(node.subnets), 24))
    yield _text((x + 12, y + 58), _short(f"{node.backend} {node.address}", 24), colour="#57606a")
    yield _mark((x + 19, y + 72), node.health)
    yield _text((x + 32, y + 76), node.health.value, colour=colour)


def _cards(topology: Topology) -> tuple[float, list[str]]:
    body: list[str] = []
    bottoms = [float(_TOP), float(_TOP)]
    for group in topology.groups:
        column = bottoms.index(min(bottoms))
        height, parts = _card(group, (16 + column * (_CARD[0] + 16), bottoms[column]))
        body += parts
        bottoms[column] += height + 16
    y = max(bottoms) + 16
    bad = topology.bad_links
    for link in bad[:_MOST_LISTED]:
        path = "direct" if link.direct else "tunnelled"
        words = f"{_MARKS[link.health]} {link.ends[0]} - {link.ends[1]}: {link.remark} ({path})"
        body.append(_text((24, y), words, colour=_COLOURS[link.health]))
        y += 20
    if len(bad) > _MOST_LISTED:
        body.append(_text((24, y), f"and {len(bad) - _MOST_LISTED:,} more links that are not well"))
        y += 20
    return y + 8, body


def _card(group: Group, place: _Point) -> tuple[float, list[str]]:
    (x, y), (width, head) = place, _CARD
    columns = (width - 24) // _DOT
    numbers = group.healths
    states = ", ".join(f"{numbers[each]:,} {each.value}" for each in Overall if numbers[each])
    unwell = [node.name for node in group.nodes if node.health.is_bad]
    height = head + 24 + _DOT * math.ceil(len(group.nodes) / columns) + (22 if unwell else 0)
    parts = [
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width}" height="{height}" rx="8" fill="#f6f8fa" stroke="#d0d7de"/>',
        _text((x + 12, y + 23), f"{group.underlay}, {group.backend}: {len(group.nodes):,} nodes", size=15, bold=True),
        _text((x + 12, y + 43), states),
    ]
    for number, node in enumerate(group.nodes):
        row, column = divmod(number, columns)
        at = (x + 12 + _DOT / 2 + column * _DOT, y + head + 18 + row * _DOT)
        title = quoteattr(visible(f"{node.name} {' '.join(node.subnets)} {node.address} {node.health.value}"))
        parts.append(f"<g aria-label={title}><title>{title[1:-1]}</title>{_mark(at, node.health)}</g>")
    if unwell:
        parts.append(_text((x + 12, y + height - 9), _short("not well: " + ", ".join(unwell), 58)))
    return height, parts


def _mark(place: _Point, health: Overall) -> str:
    x, y = place
    return f'<rect x="{x - 8:.1f}" y="{y - 8:.1f}" width="16" height="16" rx="3" fill="{_COLOURS[health]}"/>' + _text(
        (x, y + 4), _MARKS[health], size=11, colour="#ffffff", bold=True, anchor="middle"
    )


def _line(first: _Point, second: _Point, colour: str, dashes: str, width: float) -> str:
    dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{first[0]:.1f}" y1="{first[1]:.1f}" x2="{second[0]:.1f}" y2="{second[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width}"{dashed}/>'
    )


def _text(
    place: _Point, words: str, *, size: int = 13, colour: str = "#24292f", bold: bool = False, anchor: str = "start"
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{place[0]:.1f}" y="{place[1]:.1f}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
        f"{weight}>{escape(visible(words))}</text>"
    )


def _short(words: str, most: int) -> str:
    return words if len(words) <= most else words[: most - 1] + "…"
