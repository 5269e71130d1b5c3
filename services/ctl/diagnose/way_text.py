"""The way of a packet: each object that it passes, on which node, and where it ends."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.text import Text

from services.ctl.render.layout import Width, fold, lines, table
from services.ctl.units import count
from services.ctl.way import Verdict, Way, WayStep

_STYLES: Final = {Verdict.PASSES: "green", Verdict.BROKEN: "bold red", Verdict.UNKNOWN: "yellow"}
_ROOM: Final = 10
"""Column of the room, then of the object."""
_OBJECT: Final = 30


def ways_text(ways: Sequence[Way], width: Width, *, whole_return: bool) -> Text:
    """There and back. The way back is one line where nothing is wrong with it, unless it is asked for."""
    if width is None:
        return _lines(ways)
    out: list[str | Text] = []
    for number, way in enumerate(ways):
        is_short = number > 0 and way.first_broken is None and not whole_return
        out += ["", *_way(way, width, is_short=is_short)] if number else _way(way, width, is_short=is_short)
    return lines(out)


def _way(way: Way, width: Width, *, is_short: bool) -> list[Text]:
    style = "bold red" if way.first_broken else "bold green" if way.is_whole else "bold"
    said = f"{way.outcome}, {count(len(way.steps), 'step')}" if is_short else way.outcome
    out = [
        fold(
            Text(
                f"{_end(way.source, way.source_node)} to {_end(way.destination, way.destination_node)}: {said}",
                style=style,
            ),
            width,
            2,
        )
    ]
    if not is_short:
        first = way.first_broken
        for (node, sends), steps in groupby(way.steps, key=lambda step: (step.node, step.sends)):
            out += [Text(f"{node} {'sends' if sends else 'receives'}", style="bold")]
            out += [line for step in steps for line in _step(step, width, is_first=step is first)]
    return out + [fold(Text(remark, style="yellow"), width, 2) for remark in ([] if is_short else way.remarks)]


def _step(step: WayStep, width: Width, *, is_first: bool) -> Iterator[Text]:
    style = _STYLES[step.verdict]
    head = Text.assemble((f"{'->' if is_first else '  '}{step.verdict:<{_ROOM - 2}}", style), f"{step.room:<20}")
    owner = Text(f"  ({step.owner})" if step.owner not in ("", "kernel") else "", style="dim")
    yield fold(head.append_text(Text(step.text)).append_text(owner), width, _OBJECT)
    if step.reason:
        yield fold(Text(" " * _OBJECT + step.reason, style=style), width, _OBJECT)
    if step.cure:
        yield fold(Text(" " * _OBJECT + step.cure, style="green"), width, _OBJECT + 2)


def _end(address: str, node: str) -> str:
    return f"{address} ({node})" if node else address


def _lines(ways: Sequence[Way]) -> Text:
    rows = [
        (
            (f"{way.source}>{way.destination}",),
            (step.node,),
            (str(step.verdict),),
            (step.room,),
            (step.text,),
            (step.owner,),
            (step.reason,),
            (step.cure,),
        )
        for way in ways
        for step in way.steps
    ]
    return table(("WAY", "NODE", "VERDICT", "ROOM", "OBJECT", "OWNER", "REASON", "CURE"), rows, None)
