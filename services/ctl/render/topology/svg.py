"""The cluster as SVG, laid out here: a few nodes on a circle with every link, many as cards of groups.

Both layouts are simple, and a drawing that needs Graphviz on the machine would not be there when it is needed. For
another layout, `-o dot` is for Graphviz.
"""

import math
from collections.abc import Iterator
from typing import Final
from xml.sax.saxutils import escape, quoteattr

from flannelette.services.core.formats.visible import visible
from flannelette.services.ctl.render.topology.model import (
    COLOURS,
    MARKS,
    Group,
    Health,
    Link,
    Node,
    Topology,
    summary,
)

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
    title = f"<title>{escape(summary(topology))}</title>"
    back = '<rect width="100%" height="100%" fill="#ffffff"/>'
    return "\n".join([head, title, back, *_legend(topology), *body, "</svg>", ""])


def _legend(topology: Topology) -> Iterator[str]:
    yield _text((24, 36), summary(topology), size=15, bold=True)
    x = 24.0
    for health in Health:
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
    body = [part for link in topology.links for part in _link(link, places)]
    has_labels = len(topology.links) <= _MOST_LABELS
    bad = topology.bad_links
    labelled = [link for link in topology.links if link.remark and (link in bad or (has_labels and not link.is_bad))]
    body += [part for link in labelled for part in _label(link, places)]
    body += [part for node in topology.nodes for part in _box(node, places[node.name])]
    return middle[1] + radius_y + _BOX[1], body


def _link(link: Link, places: dict[str, _Point]) -> Iterator[str]:
    first, second = (places[end] for end in link.ends)
    yield _line(first, second, COLOURS[link.health], "" if link.direct else "7 4", 3 if link.is_bad else 1.5)


def _label(link: Link, places: dict[str, _Point]) -> Iterator[str]:
    (x1, y1), (x2, y2) = (places[end] for end in link.ends)
    part = 0.5 if math.dist((x1, y1), (x2, y2)) < _NEAR else 0.42  # in the middle of a diagonal others cross it
    x, y = x1 + (x2 - x1) * part, y1 + (y2 - y1) * part
    words = f"{MARKS[link.health]} {link.remark}" if link.is_bad else link.remark
    width = 8.2 * len(words) + 8
    yield f'<rect x="{x - width / 2:.1f}" y="{y - 11:.1f}" width="{width:.1f}" height="20" rx="4" fill="#ffffff"/>'
    yield _text((x, y + 4), words, colour=COLOURS[link.health], bold=link.is_bad, anchor="middle")


def _box(node: Node, place: _Point) -> Iterator[str]:
    colour, (width, height) = COLOURS[node.health], _BOX
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
        words = f"{MARKS[link.health]} {link.ends[0]} - {link.ends[1]}: {link.remark} ({path})"
        body.append(_text((24, y), words, colour=COLOURS[link.health]))
        y += 20
    if len(bad) > _MOST_LISTED:
        body.append(_text((24, y), f"and {len(bad) - _MOST_LISTED:,} more links that are not well"))
        y += 20
    return y + 8, body


def _card(group: Group, place: _Point) -> tuple[float, list[str]]:
    (x, y), (width, head) = place, _CARD
    columns = (width - 24) // _DOT
    numbers = group.healths
    states = ", ".join(f"{numbers[each]:,} {each.value}" for each in Health if numbers[each])
    unwell = [node.name for node in group.nodes if node.health not in (Health.HEALTHY, Health.UNKNOWN)]
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


def _mark(place: _Point, health: Health) -> str:
    x, y = place
    return f'<rect x="{x - 8:.1f}" y="{y - 8:.1f}" width="16" height="16" rx="3" fill="{COLOURS[health]}"/>' + _text(
        (x, y + 4), MARKS[health], size=11, colour="#ffffff", bold=True, anchor="middle"
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
