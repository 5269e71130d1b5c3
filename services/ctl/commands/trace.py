"""`flannelette trace`: each object that a packet passes, on which node, and where it ends."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Final

import click
from rich.text import Text

from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import command
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.packet_path import PacketPath, PathStep, Verdict, follow_packet
from flannelette.services.ctl.screen import Screen, Width, fold, lines, table

_STYLES: Final = {Verdict.PASSES: "green", Verdict.BROKEN: "bold red", Verdict.UNKNOWN: "yellow"}
_KIND: Final = 10
"""Column of the kind, then of the object."""
_OBJECT: Final = 30


@command(scope="every", examples=("flannelette trace h1 h2", "flannelette trace 10.5.1.2 10.5.2.2 --return"))
@click.argument("source")
@click.argument("destination")
@click.option("--return", "whole_return", is_flag=True, help="Show every step of the return path too.")
async def trace(nodes: Nodes, screen: Screen, source: str, destination: str, whole_return: bool) -> int:
    """Follow a packet through the kernels of both nodes.

    SOURCE and DESTINATION are addresses of pods, or names of nodes, which stand
    for their address in the overlay. Shows every object that decides about the
    packet, such as the route or the firewall, and the first one that loses it
    with its cure. Sends no packet. The return path is one line unless it is broken.

    Without a context only this node is asked, which knows its half of the path.
    Exits with 0 if nothing is wrong, with 1 if the path there or back is broken,
    and with 2 if no dataplane answers.
    """
    there = await follow_packet(nodes, source, destination, screen.warn)
    paths = [there]
    if there.destination_node:
        paths.append(await follow_packet(nodes, there.destination, there.source))
    if screen.json:
        screen.show_json({"paths": [path.document() for path in paths]})
    else:
        screen.show(paths_text(paths, screen.width, whole_return=whole_return))
    return int(any(path.first_broken for path in paths))


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
