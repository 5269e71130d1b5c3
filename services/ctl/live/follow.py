"""What a command shows, again and again: redrawn on a terminal, a line for each change in a pipe."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

from rich.text import Text

from flannelette.services.ctl.connect.call import Channels
from flannelette.services.ctl.live.full_screen import full_screen, run
from flannelette.services.ctl.render.layout import Cell, Width, lines, table
from flannelette.services.ctl.render.screen import Screen

PAUSE: Final = 1.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that is shown."""

    key: Hashable
    """What is compared: figures that change all the time are not in it."""
    cells: Sequence[Cell]
    document: Any
    """For JSON."""


@dataclass(frozen=True, slots=True)
class View:
    """What is to be shown now."""

    text: Callable[[Width], Text]
    """For a terminal."""
    titles: Sequence[str]
    rows: Mapping[str, Row]
    state: int
    """The column that says `gone` of a row that is no longer there."""


Look: TypeAlias = Callable[[Channels], Awaitable[View]]


def follow(look: Look, screen: Screen) -> int:
    """Shows what `look` returns until Ctrl-C; returns the exit code."""
    return run(_follow(look, screen))


async def _follow(look: Look, screen: Screen) -> None:
    async with Channels() as channels:
        await _show(partial(look, channels), screen)


async def _show(look: Callable[[], Awaitable[View]], screen: Screen) -> None:
    if screen.width is None or screen.json or screen.console.is_dumb_terminal:
        await _append(look, screen)
    else:
        await _redraw(look, screen)


async def _redraw(look: Callable[[], Awaitable[View]], screen: Screen) -> None:
    view = await look()
    try:
        with full_screen(screen) as terminal:
            while True:
                shown = view.text(terminal.size[0])
                stamp = f"{datetime.now():%H:%M:%S}, again every {PAUSE:g} s; Ctrl-C ends"
                terminal.show(lines([Text(stamp, style="dim"), "", shown]))
                await asyncio.sleep(PAUSE)
                view = await look()
    finally:
        screen.show(view.text(screen.width))


async def _append(look: Callable[[], Awaitable[View]], screen: Screen) -> None:
    known: Mapping[str, Row] = {}
    is_first = True
    while True:
        view = await look()
        news = [row for name, row in view.rows.items() if name not in known or known[name].key != row.key]
        gone = [known[name] for name in known if name not in view.rows]
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        if screen.json:
            for row in news:
                screen.show_json({"time": now, **row.document}, one_line=True)
            for row in gone:
                screen.show_json({"time": now, **row.document, "gone": True}, one_line=True)
        elif news or gone or is_first:
            cells = [row.cells for row in news]
            cells += [_with(row.cells, view.state, Text("gone", style="red")) for row in gone]
            text = table(("TIME", *view.titles), [((now,), *each) for each in cells], None)
            screen.show(text if is_first else lines(text.split("\n")[1:]))
        known, is_first = view.rows, False
        await asyncio.sleep(PAUSE)


def _with(cells: Sequence[Cell], column: int, word: Text) -> list[Cell]:
    return [(word,) if number == column else cell for number, cell in enumerate(cells)]
