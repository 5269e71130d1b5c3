"""A plot with logarithmic axes, as SVG text: the sizes on one axis, a figure of each contender on the other. Pure."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_WIDTH, _HEIGHT = 860, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 230, 40, 50
_FONT: Final = 'font-family="sans-serif" font-size="12"'
_LABEL_HEIGHT: Final = 15


@dataclass(frozen=True, slots=True)
class Line:
    """What is drawn of the results of one bench."""

    words: str
    bench: str
    figure: Callable[[Mapping[str, Any]], float | None]
    colour: str

    def points(self, results: Iterable[Mapping[str, Any]]) -> list[tuple[float, float]]:
        """Size and figure, by size."""
        mine = (result for result in results if result["name"] == self.bench)
        found = ((result["parameters"]["peers"], self.figure(result)) for result in mine)
        return sorted((size, value) for size, value in found if value is not None and value > 0)


@dataclass(frozen=True, slots=True)
class _Axis:
    """A logarithmic axis: from values to places."""

    first: float
    last: float
    start: float
    end: float

    def place(self, value: float) -> float:
        share = math.log(value / self.first) / math.log(self.last / self.first)
        return self.start + share * (self.end - self.start)

    def decades(self) -> Iterator[float]:
        for power in range(math.ceil(math.log10(self.first)), math.floor(math.log10(self.last)) + 1):
            yield 10.0**power


def plot(lines: Sequence[Line], results: Sequence[Mapping[str, Any]], title: str) -> str:
    """The SVG; nothing in it but its axes when there are no results."""
    drawn = [(line, points) for line in lines if (points := line.points(results))]
    values = [value for _, points in drawn for _, value in points] or [1.0]
    sizes = [size for _, points in drawn for size, _ in points] or [1.0]
    across = _Axis(min(sizes), max(*sizes, 10 * min(sizes)), _LEFT, _WIDTH - _RIGHT)
    up = _Axis(10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values) * 1.01)), 0, 0)
    up = _Axis(up.first, up.last, _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" '
        f'height="{_HEIGHT}" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" {_FONT} font-weight="bold">{title}</text>',
        *_grid(across, up, sorted(set(sizes))),
        *_curves(drawn, across, up),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _grid(across: _Axis, up: _Axis, sizes: Iterable[float]) -> Iterator[str]:
    for value in up.decades():
        y = up.place(value)
        yield f'<line x1="{across.start}" y1="{y:.1f}" x2="{across.end}" y2="{y:.1f}" stroke="#e5e7eb"/>'
        yield f'<text x="{across.start - 8}" y="{y + 4:.1f}" {_FONT} text-anchor="end">{value:g} s</text>'
    for size in sizes:
        x = across.place(size)
        yield f'<line x1="{x:.1f}" y1="{up.end}" x2="{x:.1f}" y2="{up.start}" stroke="#e5e7eb"/>'
        yield f'<text x="{x:.1f}" y="{up.start + 20}" {_FONT} text-anchor="middle">{size:,.0f}</text>'
    yield f'<text x="{across.end}" y="{up.start + 38}" {_FONT} text-anchor="end">peers</text>'


def _curves(drawn: Sequence[tuple[Line, list[tuple[float, float]]]], across: _Axis, up: _Axis) -> Iterator[str]:
    ends = sorted((up.place(points[-1][1]), number) for number, (_, points) in enumerate(drawn))
    below, labels = -math.inf, dict[int, float]()
    for y, number in ends:  # from the top, each at least a line below the one before
        below = labels[number] = max(y, below + _LABEL_HEIGHT)
    for number, (line, points) in enumerate(drawn):
        places = [(across.place(size), up.place(value)) for size, value in points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline points="{path}" fill="none" stroke="{line.colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"/>' for x, y in places)
        label = f'x="{across.end + 12}" y="{labels[number] + 4:.1f}" {_FONT} fill="{line.colour}"'
        yield f"<text {label}>{line.words}</text>"
