"""What a command shows, again and again: redrawn on a terminal, a line for each change in a pipe.

It has the whole terminal for as long as something is shown on it; as it was afterwards, however the program ends.
"""

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, TypeAlias

from rich.live import Live
from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.answers import is_unclear, networks_of
from flannelette.services.ctl.connect.call import CallFailed, Channels, of_each, or_failure
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Targets, in_network
from flannelette.services.ctl.screen import Cell, Screen, Width, fold, harmless, lines, table

_ENDED: Final = 128 + signal.SIGTERM
_LARGEST_READ: Final = 1024


class FullScreen:
    """The terminal's second screen, and the keys that are typed."""

    def __init__(self, live: Live, *, has_keys: bool) -> None:
        self._live = live
        self._has_keys = has_keys

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines, as of now."""
        return self._live.console.size

    def show(self, text: Text) -> None:
        """Replaces what is shown. What does not fit is cut below, and the last line then counts it."""
        columns, height = self.size
        rows: list[Text] = [*harmless(text).split("\n", allow_blank=True)]
        if len(rows) > height:
            hidden = len(rows) - height + 1
            rows = rows[: height - 1]
            rows.append(Text(f"... {hidden} more lines: the terminal has {height}", style="dim"))
        for row in rows:
            row.truncate(columns)
        self._live.update(Text("\n", no_wrap=True, end="").join(rows), refresh=True)

    @contextmanager
    def keys(self, take: Callable[[str], None]) -> Iterator[None]:
        """Calls `take` with what is typed meanwhile: a character, or the sequence of a key such as an arrow."""
        if not self._has_keys:
            yield
            return
        loop, descriptor = asyncio.get_running_loop(), sys.stdin.fileno()

        def read() -> None:
            typed = os.read(descriptor, _LARGEST_READ).decode(errors="replace")
            if not typed:
                loop.remove_reader(descriptor)
            for key in [typed] if typed.startswith("\x1b") else typed:
                take(key)

        loop.add_reader(descriptor, read)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)


@contextmanager
def full_screen(screen: Screen) -> Iterator[FullScreen]:
    """The whole terminal, inside the block."""
    has_keys = sys.stdin.isatty()
    former = termios.tcgetattr(sys.stdin) if has_keys else []
    try:
        if has_keys:
            tty.setcbreak(sys.stdin)
        with Live(console=screen.console, screen=True, auto_refresh=False) as live:
            yield FullScreen(live, has_keys=has_keys)
    finally:
        if has_keys:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, former)


def run(work: Coroutine[Any, Any, None]) -> int:
    """Runs it until its end, Ctrl-C (exit code 0), or SIGTERM and a hang-up, which cancel it (143)."""
    try:
        return asyncio.run(_until_asked_to_end(work))
    except KeyboardInterrupt:
        return 0


async def _until_asked_to_end(work: Coroutine[Any, Any, None]) -> int:
    task = asyncio.ensure_future(work)
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():  # Ctrl-C
            raise
        return _ENDED
    return 0


PAUSE: Final = 1.0
"""Seconds between two looks."""


@frozen
class Row:
    """One thing that is shown."""

    key: Hashable
    """What is compared: figures that change all the time are not in it."""
    cells: Sequence[Cell]
    document: Any
    """The thing as JSON and YAML show it."""


@frozen
class ScreenOptions:
    """What is to be shown now."""

    text: Callable[[Width], Text]
    """Makes the text for a terminal of this width."""
    titles: Sequence[str]
    rows: Mapping[str, Row]
    state: int
    """The column that says `gone` of a row that is no longer there."""


@frozen
class Shown:
    """What a command shows of one node, in one network."""

    text: Callable[[Width], Text]
    document: dict[str, Any]
    """The same as JSON and YAML show it."""
    code: int
    """Exit code of the command for this node."""
    titles: Sequence[str]
    rows: Mapping[str, Row]
    """Rows that are followed, by name."""
    state: int
    """The column that says `gone` of a row that is no longer there."""
    remarks: Sequence[str] = ()
    """Lines for standard error."""
    failure: CallFailed | None = None
    """Why a part of it is missing."""
    is_table: bool = False
    """Whether the text is a table of these rows: then a pipe gets one table for all nodes."""
    is_empty: bool = False
    """There is no text."""


Look: TypeAlias = Callable[[Targets, Channels], Awaitable[Shown]]
Place: TypeAlias = tuple[str, str]
"""A node and its network; empty where there is one."""


def show_each(
    nodes: Nodes,
    screen: Screen,
    look: Look,
    *,
    is_watching: bool,
    worst: Callable[[Sequence[int]], int] = lambda codes: 2 if set(codes) == {2} else min(max(codes), 1),
) -> int:
    """Shows what `look` returns of each node in each of its networks, once or until Ctrl-C; returns the exit code.

    That is the code of the only one, or `worst` of several. Raises CallFailed if nothing of the only one is known; of
    several nodes each failure is told.
    """
    if is_watching:
        return follow(_Watched(nodes, screen, look).take, screen)
    return asyncio.run(_show_once(nodes, screen, look, worst))


async def _show_once(nodes: Nodes, screen: Screen, look: Look, worst: Callable[[Sequence[int]], int]) -> int:
    async with Channels() as channels:
        found = await _looks(nodes, channels, look)
    if len(found) == 1 and isinstance(failure := next(iter(found.values())), CallFailed):
        raise failure
    is_one, shown = len(found) == 1, {place: each for place, each in found.items() if isinstance(each, Shown)}
    for place, each in found.items():
        for remark in each.remarks if isinstance(each, Shown) else (each,):
            screen.warn(f"{remark}" if is_one else f"{'/'.join(filter(None, place))}: {remark}")
    if screen.json:
        documents = [_document(place, each, is_one=is_one) for place, each in found.items()]
        screen.show_json(documents[0] if is_one else documents)
    elif shown and screen.width is None and not is_one and all(each.is_table for each in shown.values()):
        titles = next((("ON", *each.titles) for each in shown.values()), ("ON",))
        rows = [((_name(place),), *row.cells) for place, each in shown.items() for row in each.rows.values()]
        screen.show(table(titles, rows, None))
    elif not all(each.is_empty for each in shown.values()):
        screen.show(_text(shown, screen.width, is_one=is_one))
    codes = [each.code if isinstance(each, Shown) else each.exit_code for each in found.values()]
    return codes[0] if is_one else worst(codes)


async def _looks(nodes: Nodes, channels: Channels, look: Look) -> dict[Place, Shown | CallFailed]:
    """What is seen of each node, in each network where it has several."""

    async def one(node: str, targets: Targets) -> dict[Place, Shown | CallFailed]:
        seen = await or_failure(look(targets, channels))
        failure = seen.failure if isinstance(seen, Shown) else seen
        networks = await networks_of(targets, channels, is_unclear=is_unclear(failure))
        if not networks:
            return {(node, ""): seen}
        return {(node, name): await or_failure(look(in_network(targets, name), channels)) for name in networks}

    found = await of_each(nodes, one)
    return {place: seen for each in found.values() for place, seen in each.items()}


def _document(place: Place, seen: Shown | CallFailed, *, is_one: bool) -> dict[str, Any]:
    document = {"error": str(seen)} if isinstance(seen, CallFailed) else seen.document
    return document if is_one else {**document, **_where(place)}


def _where(place: Place) -> dict[str, str]:
    return {key: name for key, name in zip(("node", "network"), place, strict=True) if name}


def _text(shown: Mapping[Place, Shown], width: Width, *, is_one: bool) -> Text:
    out = list[Text]()
    for (node, network), each in shown.items():
        if each.is_empty:
            continue
        where = ", ".join(filter(None, (node and f"node {node}", network and f"network {network}")))
        out += [] if is_one else [Text(f"--- {where} ---", style="bold")]
        out.append(each.text(width))
    return lines(out)


def _name(place: Place) -> str:
    return "/".join(filter(None, place))


def why_incomplete(status: dataplane_pb2.Status | masq_pb2.Status, has_some: bool) -> tuple[tuple[str, ...], int]:
    """Returns the reasons of a list that is incomplete, or empty, which may be right; and the exit code: 1 if it is
    incomplete or the service is not ready.
    """
    return (*status.reasons,), int(has_some or not status.ready)


class _Watched:
    """The places that are looked at again and again, each as it was seen last."""

    def __init__(self, nodes: Nodes, screen: Screen, look: Look) -> None:
        self._nodes = nodes
        self._screen = screen
        self._look = look
        self._last: dict[Place, Shown] = {}
        self._told: set[str] = set()
        self._is_one: bool | None = None
        """Whether the rows need no column for the place: the first look decides."""

    async def take(self, channels: Channels) -> ScreenOptions:
        """Raises CallFailed if nothing has been seen yet; a later failure is shown beside what was seen last."""
        found = await _looks(self._nodes, channels, self._look)
        if self._is_one is None:
            self._is_one = len(found) == 1
        failures, shown = list[str](), dict[Place, Shown]()
        for place, seen in found.items():
            where = "" if self._is_one else f"{_name(place)}: "
            if isinstance(seen, Shown):
                shown[place] = self._last[place] = seen
                failures += [f"{where}{remark}" for remark in seen.remarks]
                continue
            failures.append(f"{where}{seen}; trying again")
            if place in self._last:
                shown[place] = self._last[place]
        if not self._last:
            raise next(each for each in found.values() if isinstance(each, CallFailed))
        if self._screen.width is None or self._screen.json:
            for failure in failures:
                if failure not in self._told:
                    self._screen.warn(failure)
        self._told = {*failures}
        return self._view(shown, failures, is_one=self._is_one)

    @staticmethod
    def _view(shown: Mapping[Place, Shown], failures: Sequence[str], *, is_one: bool) -> ScreenOptions:
        def text(width: Width) -> Text:
            said = [fold(Text(f"! {failure}", style="yellow"), width, 2) for failure in failures]
            return lines([*said, _text(shown, width, is_one=is_one)])

        first = next(iter(shown.values()))
        if is_one:
            return ScreenOptions(text, first.titles, first.rows, first.state)
        rows = {
            f"{_name(place)} {name}": replace(
                row,
                cells=((_name(place),), *row.cells),
                document=_where(place) | row.document,
            )
            for place, each in shown.items()
            for name, row in each.rows.items()
        }
        return ScreenOptions(text, ("ON", *first.titles), rows, first.state + 1)


def follow(look: Callable[[Channels], Awaitable[ScreenOptions]], screen: Screen) -> int:
    """Shows what `look` returns until Ctrl-C; returns the exit code."""
    return run(_follow(look, screen))


async def _follow(look: Callable[[Channels], Awaitable[ScreenOptions]], screen: Screen) -> None:
    async with Channels() as channels:
        await _show(partial(look, channels), screen)


async def _show(look: Callable[[], Awaitable[ScreenOptions]], screen: Screen) -> None:
    if screen.width is None or screen.json or screen.console.is_dumb_terminal:
        await _append(look, screen)
    else:
        await _redraw(look, screen)


async def _redraw(look: Callable[[], Awaitable[ScreenOptions]], screen: Screen) -> None:
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


async def _append(look: Callable[[], Awaitable[ScreenOptions]], screen: Screen) -> None:
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
