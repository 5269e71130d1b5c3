"""The plot of a simulation, as SVG text, from its figures as JSON: convergence of each act, CPU and memory. Pure."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

_WIDTH, _LEFT, _RIGHT, _ROW, _PANEL = 860, 70, 110, 24, 150
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_GREY: Final = "#6b7280"
_COLOURS: Final = ("#9ca3af", "#c2410c", "#2563eb", "#15803d", "#7c3aed", "#be185d", "#0e7490")
_LEAST: Final = 0.001
"""Seconds, at the left end of the axis of convergence."""
_NAMES: Final = 270
"""Width of the names of acts."""
_Point = tuple[float, float]


def plot(found: Mapping[str, Any]) -> str:
    """Returns the plot as SVG text."""
    acts, options = found["acts"], found["options"]
    top = 60
    panels = top + _ROW * len(acts) + 60
    height = panels + 2 * (_PANEL + 60)
    title = f"{options['nodes']:,} nodes, lease services {' - '.join(map(str, options['tiers']))}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="white"/>',
        _text(16, 24, title, extra='font-weight="bold"'),
        _text(16, 44, "Seconds until nodes have everything: half of them, 99 % (bar), the last (line)", _GREY),
        *_convergence(acts, top),
        *_timeline("CPU, percent of a core", found, panels, _rates(found["samples"])),
        *_timeline("Memory, MiB", found, panels + _PANEL + 60, _memory(found["samples"])),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _convergence(acts: Sequence[Mapping[str, Any]], top: float) -> Iterator[str]:
    longest = max((act["told"]["last"] for act in acts if act["told"]), default=1.0)
    decades = range(int(math.log10(_LEAST)), max(1, math.ceil(math.log10(longest))) + 1)
    first, width = decades[0], _WIDTH - _NAMES - 30

    def across(seconds: float) -> float:
        return _NAMES + width * (math.log10(max(seconds, _LEAST)) - first) / (decades[-1] - first)

    bottom = top + _ROW * len(acts)
    for decade in decades:
        x = across(10.0**decade)
        yield f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}" stroke="#e5e7eb"/>'
        yield _text(x, bottom + 16, f"{10.0**decade:g} s", _GREY, "middle")
    for number, act in enumerate(acts):
        y = top + _ROW * number + _ROW / 2
        yield _text(16, y + 4, f"{number + 1}  {act['words']}")
        if not act["told"]:
            continue
        half, most, last = (across(act["told"][name]) for name in ("p50", "p99", "last"))
        colour = _COLOURS[1] if act["differences"] else _COLOURS[2]
        yield f'<line x1="{half:.1f}" y1="{y}" x2="{last:.1f}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        yield f'<rect x="{half:.1f}" y="{y - 6}" width="{max(most - half, 3):.1f}" height="12" fill="{colour}"/>'
        yield f'<line x1="{last:.1f}" y1="{y - 6}" x2="{last:.1f}" y2="{y + 6}" stroke="{colour}" stroke-width="2"/>'


def _timeline(
    title: str, found: Mapping[str, Any], top: float, lines: Mapping[str, Sequence[_Point]]
) -> Iterator[str]:
    start = min((x for points in lines.values() for x, _ in points), default=0.0)
    end = max((x for points in lines.values() for x, _ in points), default=1.0)
    most = _round_up(max((y for points in lines.values() for _, y in points), default=1.0))
    bottom, right = top + _PANEL, _WIDTH - _RIGHT

    def across(x: float) -> float:
        return _LEFT + (right - _LEFT) * (x - start) / max(end - start, 1e-9)

    yield _text(16, top - 12, title, extra='font-weight="bold"')
    for number, act in enumerate(found["acts"]):
        x, width = across(act["began"]), across(act["ended"]) - across(act["began"])
        shade = "#f3f4f6" if number % 2 else "#f9fafb"
        yield f'<rect x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_PANEL}" fill="{shade}"/>'
        yield _text(x + width / 2, bottom + 16, str(number + 1), _GREY, "middle")
    for share in (0.0, 0.5, 1.0):
        y = bottom - _PANEL * share
        yield f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        yield _text(_LEFT - 8, y + 4, f"{most * share:,.0f}", _GREY, "end")
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        path = " ".join(f"{across(x):.1f},{bottom - _PANEL * y / most:.1f}" for x, y in points)
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>'
        yield _text(right + 12, top + 14 + 16 * number, name, colour)


def _rates(samples: Sequence[Any]) -> dict[str, list[_Point]]:
    """Percent of a core that each tier took between two samples."""
    return _by_tier(samples, lambda a, b, tier: 100 * max(0.0, b[1].get(tier, 0) - a[1].get(tier, 0)) / (b[0] - a[0]))


def _memory(samples: Sequence[Any]) -> dict[str, list[_Point]]:
    return _by_tier(samples, lambda _, b, tier: b[2].get(tier, 0))


def _by_tier(samples: Sequence[Any], value: Callable[[Any, Any, str], float]) -> dict[str, list[_Point]]:
    tiers = samples[-1][1] if samples else {}
    pairs = [(a, b) for a, b in pairwise(samples) if b[0] > a[0]]
    return {tier: [(b[0], value(a, b, tier)) for a, b in pairs] for tier in tiers}


def _round_up(value: float) -> float:
    """Rounds up to one or two digits that are easily halved."""
    power = 10 ** math.floor(math.log10(max(value, 1.0)))
    return float(next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value))


def _text(x: float, y: float, words: str, colour: str = "#111827", anchor: str = "start", extra: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" {_FONT} fill="{colour}" text-anchor="{anchor}" {extra}>{words}</text>'
