"""The path of a packet: each object that it passes, on which node, and where it ends."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

from rich.text import Text

from flannelette.services.ctl.diagnose.packet_path import PacketPath, PathStep, Verdict
from flannelette.services.ctl.render.layout import Width, fold, lines, table
from flannelette.services.ctl.units import count

_STYLES: Final = {Verdict.PASSES: "green", Verdict.BROKEN: "bold red", Verdict.UNKNOWN: "yellow"}
_KIND: Final = 10
"""Column of the kind, then of the object."""
_OBJECT: Final = 30


def paths_text(paths: Sequence[PacketPath], width: Width, *, whole_return: bool) -> Text:
    """There and back. The path back is one line where nothing is wrong with it, unless it is asked for."""
    if width is None:
        return _lines(paths)
    out: list[str | Text] = []
    for number, path in enumerate(paths):
        is_short = number > 0 and path.first_broken is None and not whole_return
        out += ["", *_path(path, width, is_short=is_short)] if number else _path(path, width, is_short=is_short)
    return lines(out)


def _path(path: PacketPath, width: Width, *, is_short: bool) -> list[Text]:
    style = "bold red" if path.first_broken else "bold green" if path.is_whole else "bold"
    said = f"{path.outcome}, {count(len(path.steps), 'step')}" if is_short else path.outcome
    out = [
        fold(
            Text(
                f"{_end(path.source, path.source_node)} to {_end(path.destination, path.destination_node)}: {said}",
                style=style,
            ),
            width,
            2,
        )
    ]
    if not is_short:
        first = path.first_broken
        for (node, sends), steps in groupby(path.steps, key=lambda step: (step.node, step.sends)):
            out += [Text(f"{node} {'sends' if sends else 'receives'}", style="bold")]
            out += [line for step in steps for line in _step(step, width, is_first=step is first)]
    return out + [fold(Text(remark, style="yellow"), width, 2) for remark in ([] if is_short else path.remarks)]


def _step(step: PathStep, width: Width, *, is_first: bool) -> Iterator[Text]:
    style = _STYLES[step.verdict]
    head = Text.assemble((f"{'->' if is_first else '  '}{step.verdict:<{_KIND - 2}}", style), f"{step.kind:<20}")
    owner = Text(f"  ({step.owner})" if step.owner not in ("", "kernel") else "", style="dim")
    yield fold(head.append_text(Text(step.text)).append_text(owner), width, _OBJECT)
    if step.reason:
        yield fold(Text(" " * _OBJECT + step.reason, style=style), width, _OBJECT)
    if step.cure:
        yield fold(Text(" " * _OBJECT + step.cure, style="green"), width, _OBJECT + 2)


def _end(address: str, node: str) -> str:
    return f"{address} ({node})" if node else address


def _lines(paths: Sequence[PacketPath]) -> Text:
    rows = [
        (
            (f"{path.source}>{path.destination}",),
            (step.node,),
            (str(step.verdict),),
            (step.kind,),
            (step.text,),
            (step.owner,),
            (step.reason,),
            (step.cure,),
        )
        for path in paths
        for step in path.steps
    ]
    return table(("PATH", "NODE", "VERDICT", "KIND", "OBJECT", "OWNER", "REASON", "CURE"), rows, None)
