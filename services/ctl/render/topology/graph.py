"""The cluster as a graph in the languages of Graphviz (DOT) and Mermaid, which lay it out.

https://graphviz.org/doc/info/lang.html, https://mermaid.js.org/syntax/flowchart.html
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from flannelette.services.core.formats.visible import visible
from flannelette.services.ctl.render.topology.model import COLOURS, MARKS, Group, Health, Link, Node, Topology

_MOST_UNWELL = 40
"""Nodes beside the groups, and links of theirs."""


@dataclass(frozen=True, slots=True)
class _Vertex:
    key: str
    rows: tuple[str, ...]
    health: Health
    place: str
    """The part of the underlay that it is drawn in."""


@dataclass(frozen=True, slots=True)
class _Edge:
    ends: tuple[str, str]
    label: str
    direct: bool
    health: Health


def dot(topology: Topology) -> str:
    """An undirected graph for `dot`, `neato` and the like."""
    vertices, edges = _graph(topology)
    out = ["graph flannelette {", '  node [shape=box, fontname="sans-serif"];', '  edge [fontname="sans-serif"];']
    for number, (place, inside) in enumerate(_places(vertices)):
        out += [f"  subgraph cluster_{number} {{", f"    label={_quoted('underlay ' + place)};"]
        out += [
            f"    {_quoted(each.key)} [label={_quoted(*each.rows)}, color={_quoted(COLOURS[each.health])}];"
            for each in inside
        ]
        out.append("  }")
    for edge in edges:
        style = "solid" if edge.direct else "dashed"
        ends = " -- ".join(map(_quoted, edge.ends))
        out.append(f"  {ends} [label={_quoted(edge.label)}, style={style}, color={_quoted(COLOURS[edge.health])}];")
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
        if edge.health is not Health.HEALTHY:
            out.append(f"  linkStyle {index} stroke:{COLOURS[edge.health]}")
    out += [f"  classDef {each.name.lower()} stroke:{COLOURS[each]},stroke-width:2px" for each in Health]
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
        _Edge((_key(one), _key(other)), "direct" if direct else "", direct, Health.HEALTHY)
        for one, other in combinations(groups, 2)
    ]
    return vertices + [_vertex(node) for node in alone], between + [_edge(link) for link in bad]


def _vertex(node: Node) -> _Vertex:
    state = f"{MARKS[node.health]} {node.health.value}"
    return _Vertex(node.name, (node.name, *node.subnets, node.backend, state), node.health, node.underlay)


def _group_vertex(group: Group, shown_alone: int) -> _Vertex:
    numbers = group.healths
    states = [f"{numbers[each]:,} {each.value} {MARKS[each]}" for each in Health if numbers[each]]
    title = f"{len(group.nodes):,} nodes, {group.backend}"
    worst = [each for each in Health if numbers[each]][-1]
    more = [f"{shown_alone} of them beside"] if shown_alone else []
    return _Vertex(_key(group), (title, *states, *more), worst, group.underlay)


def _key(group: Group) -> str:
    return f"{group.underlay} {group.backend}"


def _edge(link: Link) -> _Edge:
    mark = f"{MARKS[link.health]} " if link.is_bad else ""
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
