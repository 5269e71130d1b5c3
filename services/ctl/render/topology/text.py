"""The cluster as text: tables of 80 columns."""

from collections.abc import Sequence
from typing import Final

from rich.text import Text

from flannelette.services.ctl.render.layout import Cell, Width, fold, lines, table
from flannelette.services.ctl.render.topology.model import MOST_DRAWN, Health, Link, Node, Topology, summary

_MOST: Final = 20
"""Nodes or links that are listed."""
_ALL: Final = MOST_DRAWN * (MOST_DRAWN - 1) // 2
_STYLES: Final = {
    Health.HEALTHY: "green",
    Health.UNKNOWN: "dim",
    Health.DEGRADED: "yellow",
    Health.BROKEN: "red",
    Health.AWAY: "red",
}


def topology_text(topology: Topology, width: Width) -> Text:
    """Nodes and links one by one, or groups of nodes and what is not well."""
    parts = [fold(Text(summary(topology), style="bold"), width)]
    if topology.is_small:
        parts += [_nodes(topology.nodes, width), _links(topology.links, width)]
    else:
        parts += [_groups(topology, width)]
        parts += [_nodes(topology.unwell, width)] if topology.unwell else []
        parts += [_links(topology.bad_links, width)] if topology.bad_links else []
    return lines(line for part in parts for line in ("", part))[1:]


def _groups(topology: Topology, width: Width) -> Text:
    rows: list[tuple[Cell, ...]] = []
    for group in topology.groups:
        numbers = group.healths
        rows.append(
            (
                (group.underlay,),
                (group.backend,),
                (f"{len(group.nodes):,}",),
                *((_number(numbers[each], each),) for each in Health),
            )
        )
    return table(("UNDERLAY", "BACKEND", "NODES", *(each.value.upper() for each in Health)), rows, width)


def _number(number: int, health: Health) -> Text:
    return Text(f"{number:,}", style=_STYLES[health]) if number else Text("")


def _nodes(nodes: Sequence[Node], width: Width) -> Text:
    rows = [
        ((node.name,), (_word(node.health),), node.subnets, (node.address,), (node.backend,))
        for node in nodes[:_MOST]
    ]
    return _limited(table(("NODE", "STATE", "SUBNET", "ADDRESS", "BACKEND"), rows, width), len(nodes), "node")


def _links(links: Sequence[Link], width: Width) -> Text:
    most = len(links) if len(links) <= _ALL else _MOST
    rows = [
        ((f"{link.ends[0]} - {link.ends[1]}",), ("direct" if link.direct else "tunnelled",), (_word(link.health),),
         (link.remark,))
        for link in links[:most]
    ]  # fmt: skip
    return _limited(table(("LINK", "PATH", "STATE", "REMARK"), rows, width), len(links), "link", most)


def _limited(text: Text, number: int, noun: str, most: int = _MOST) -> Text:
    return lines([text, f"and {number - most:,} more {noun}s"]) if number > most else text


def _word(health: Health) -> Text:
    return Text(health.value, style=_STYLES[health])
