"""`flannelette top`: the cluster as it is now, on the whole terminal."""

import asyncio
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.answers import assess_all
from flannelette.services.ctl.command import command
from flannelette.services.ctl.commands.peers import peers_text
from flannelette.services.ctl.commands.status import overview_row, status_text
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, Channels, across_restarts
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.follow import full_screen, run
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.problems import Overall, health_of
from flannelette.services.ctl.screen import Cell, Screen, byte_count, in_order, lines, moment, table

_TITLES: Final = ("NODE", "STATE", "PEERS", "ANSWER", "RTT", "LOSS", "IN/s", "OUT/s", "PROBLEM")


@frozen
class _Traffic:
    """Bytes that the overlay devices of a node have counted, in both directions, at a time in seconds."""

    time: float
    received: int
    sent: int


@frozen
class _Line:
    """A node at a time."""

    cells: tuple[Cell, ...]
    """Name, state, peers, answer, and the gravest problem."""
    state: Overall
    peers: tuple[int, int] | None = None
    """How many are programmed, of how many; None: not known."""
    answer: tuple[int, int] | None = None
    """How many answer probes, of how many; None: not known."""
    round_trip: int = 0
    """Median in microseconds; 0: not known."""
    loss: float | None = None
    """Mean over the peers, 0 to 1; None: not known."""
    before: _Traffic | None = None
    now: _Traffic | None = None
    """None: it has no device, as with host-gw, or does not tell."""

    @property
    def name(self) -> str:
        """The name of the node."""
        return _word(self.cells[0])

    def rate(self, of: Callable[[_Traffic], int]) -> float | None:
        """Bytes a second between the last two answers; None: not known, or a device was made anew."""
        if self.before is None or self.now is None or self.now.time <= self.before.time:
            return None
        change = of(self.now) - of(self.before)
        return change / (self.now.time - self.before.time) if change >= 0 else None


def _received(traffic: _Traffic) -> int:
    return traffic.received


def _sent(traffic: _Traffic) -> int:
    return traffic.sent


_SORTS: Final[Mapping[str, Callable[[_Line], Any]]] = {
    "state": lambda line: -line.state.gravity,
    "name": lambda line: in_order(line.name),
    "rtt": lambda line: -line.round_trip,
    "loss": lambda line: -(line.loss or 0),
    "traffic": lambda line: -((line.rate(_received) or 0) + (line.rate(_sent) or 0)),
}
"""The orders, the first one first; nodes that are equal stay in the order of the context."""

_PAUSE: Final = 2.0
"""Seconds between two questions to every node."""
_FIRST_PAUSE: Final = 1.0
"""Seconds before the second question: traffic is known after two."""
_KEPT: Final = 200
_SINCE_SECONDS: Final = 600
"""Events before the start that are shown."""
_UP: Final = ("\x1b[A", "\x1bOA", "k")
_DOWN: Final = ("\x1b[B", "\x1bOB", "j")


@command(scope="every")
def top(nodes: Nodes, screen: Screen) -> int:
    """Show the nodes, their traffic and their events, live.

    s changes the order, the arrows choose a node, Enter looks into it, q quits.
    RTT and loss are those of probes to all peers; traffic is that of the overlay
    devices, which some backends (host-gw) do not have. A pipe gets one table.
    """
    view = _Top(nodes)
    if screen.width is None or screen.json or screen.console.is_dumb_terminal:
        return run(view.print_once(screen)) or (2 if view.is_silent else 0)
    return run(view.show(screen))


class _Top:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lines: dict[str, _Line] = {}
        self._health: dict[str, NodeHealth] = {}
        self._events: deque[tuple[float, Text]] = deque(maxlen=_KEPT)
        self._peers: list[pb.Peer] = []
        self._sort = next(iter(_SORTS))
        self._chosen = ""
        """The node at the cursor; empty: the first."""
        self._is_inside = False
        self._above = 0
        """Lines of the node that are scrolled away."""
        self._news = asyncio.Event()
        self._is_over = False

    @property
    def is_silent(self) -> bool:
        """The nodes were asked, and no service of any has answered."""
        return bool(self._health) and not any(node.answered for node in self._health.values())

    async def print_once(self, screen: Screen) -> None:
        async with Channels() as channels:
            await self._ask(channels)
            await asyncio.sleep(_FIRST_PAUSE)
            await self._ask(channels)
        if screen.json:
            screen.show_json([_document_of(line) for line in self._sorted()])
        else:
            screen.show(table(_TITLES, [_row_of(line) for line in self._sorted()], None))

    async def show(self, screen: Screen) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGWINCH, self._news.set)
        async with Channels() as channels:
            await self._ask(channels)
            with full_screen(screen) as terminal, terminal.keys(self._take):
                tasks = {"": asyncio.ensure_future(self._keep_asking(channels))}
                try:
                    while not self._is_over:
                        for name, node in self._health.items():
                            if f"/{name}" not in tasks:
                                follow = self._follow(name, node.services["dataplane"].target)
                                tasks[f"/{name}"] = asyncio.ensure_future(follow)
                        terminal.show(
                            self._inside(terminal.size[0]) if self._is_inside else self._page(terminal.size)
                        )
                        await self._news.wait()
                        self._news.clear()
                        for task in tasks.values():
                            if task.done():
                                task.result()
                finally:
                    for task in tasks.values():
                        task.cancel()
                    await asyncio.gather(*tasks.values(), return_exceptions=True)

    def _take(self, key: str) -> None:
        order = [line.name for line in self._sorted()]
        at = order.index(self._chosen) if self._chosen in order else 0
        if key == "q":
            self._is_over = not self._is_inside
            self._is_inside = False
        elif key in ("\r", "\n", "\x1b"):
            self._is_inside = not self._is_inside and key != "\x1b"
            self._chosen, self._peers, self._above = order[at], [], 0
        elif key == "s":
            sorts = [*_SORTS]
            self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
        elif self._is_inside:
            self._above = max(self._above + (key in _DOWN) - (key in _UP), 0)
        elif key in _UP or key in _DOWN:
            self._chosen = order[max(at - 1, 0) if key in _UP else min(at + 1, len(order) - 1)]
        self._news.set()

    def _sorted(self) -> list[_Line]:
        return sorted(self._lines.values(), key=_SORTS[self._sort])

    def _page(self, size: tuple[int, int]) -> Text:
        shown = self._sorted()
        names = [line.name for line in shown]
        selected = names.index(self._chosen) if self._chosen in names else 0
        events = [text.copy() for _, text in sorted(self._events, key=lambda event: event[0])]
        clock = f"{datetime.now():%H:%M:%S}"
        return _page(shown, events, sort=self._sort, selected=selected, clock=clock, size=size)

    def _inside(self, columns: int) -> Text:
        node = self._health[self._key(self._chosen)]
        parts = [status_text(node, datetime.now(UTC), columns), Text(), peers_text(self._peers, columns)]
        shown = lines(parts).split("\n", allow_blank=True)
        self._above = min(self._above, len(shown) - 1)
        return lines([Text("up/down scroll  Esc back", style="dim"), *shown[self._above :]])

    async def _ask(self, channels: Channels) -> None:
        found = await assess_all(self._nodes, channels, each_network=True)
        now = time.monotonic()
        former = {name: line.now for name, line in self._lines.items()}
        self._health = found
        self._lines = {name: _line(name, node, former.get(name), now) for name, node in found.items()}
        if self._is_inside:
            with suppress(CallFailed):
                target = self._health[self._key(self._chosen)].services["dataplane"].target
                request = pb.ListPeersRequest(figures=True)
                answer = await channels.ask(
                    target, lambda c: DataplaneServiceStub(c).ListPeers(request), LIST_SECONDS
                )
                self._peers = list(answer.peers)
        self._news.set()

    def _key(self, name: str) -> str:
        return name if name in self._health else next(iter(self._health))

    async def _keep_asking(self, channels: Channels) -> None:
        await asyncio.sleep(_FIRST_PAUSE)
        while True:
            await self._ask(channels)
            await asyncio.sleep(_PAUSE)

    async def _follow(self, name: str, target: Target) -> None:
        """Takes the events of a node, also after a restart of its dataplane."""
        request = pb.WatchEventsRequest()
        request.since_time.FromSeconds(int(time.time()) - _SINCE_SECONDS)
        with suppress(CallFailed):
            async for event in across_restarts(
                target, lambda c: DataplaneServiceStub(c).WatchEvents(request), lambda _why: None, has_answered=True
            ):
                request.after = event.position
                when = moment(event.time).astimezone()
                text = Text.assemble((f"{when:%H:%M:%S}", "dim"), " ", (name, "bold"), f"  {event.what}")
                self._events.append((when.timestamp(), text))
                self._news.set()


def _line(name: str, node: NodeHealth, before: _Traffic | None, time: float) -> _Line:
    title, state, _, _, peers, answer, _, problem = overview_row(name, node)
    cells, health = (title, state, peers, answer, problem), health_of(node)
    if isinstance(node.answers.dataplane, CallFailed):
        return _Line(cells, health)
    status = node.answers.dataplane.status
    counted = [device for device in status.devices if device.HasField("received_bytes")]
    received, sent = sum(device.received_bytes for device in counted), sum(device.sent_bytes for device in counted)
    loss = status.probes.loss if status.probes.HasField("loss") else None
    now = _Traffic(time, received, sent) if counted else None
    programmed = status.peers.programmed, status.peers.total - status.peers.ignored
    answering = (status.probes.answering, status.probes.probed) if status.probes.probed else None
    return _Line(cells, health, programmed, answering, status.probes.round_trip_microseconds, loss, before, now)


def _row_of(line: _Line) -> list[Cell]:
    """The cells of a node, in the order of _TITLES."""
    name, state, peers, answer, problem = line.cells
    time = f"{line.round_trip / 1000:.2f} ms" if line.round_trip else "-"
    loss = "-" if line.loss is None else f"{line.loss:.0%}"
    coloured = Text(loss, style="yellow" if line.loss else "")
    return [
        name, state, peers, answer, (time,), (coloured,), (_rate(line, _received),), (_rate(line, _sent),), problem
    ]  # fmt: skip


def _document_of(line: _Line) -> dict[str, Any]:
    """The row for programs: `rtt` in milliseconds, `loss` from 0 to 1, traffic in bytes a second; None: not known."""
    received, sent = line.rate(_received), line.rate(_sent)
    return {
        "node": line.name,
        "state": line.state.name,
        "peers": dict(zip(("programmed", "total"), line.peers, strict=True)) if line.peers else None,
        "answer": dict(zip(("answering", "probed"), line.answer, strict=True)) if line.answer else None,
        "rtt": line.round_trip / 1000 if line.round_trip else None,
        "loss": None if line.loss is None else round(line.loss, 4),
        "in_per_second": None if received is None else round(received),
        "out_per_second": None if sent is None else round(sent),
        "problem": _word(line.cells[-1]),
    }


def _page(
    shown: Sequence[_Line],
    events: Collection[Text],
    *,
    sort: str,
    selected: int,
    clock: str,
    size: tuple[int, int],
) -> Text:
    """A page that fits into so many columns and lines."""
    columns, height = size
    states = Counter(_word(line.cells[1]) for line in sorted(shown, key=lambda line: line.state.gravity))
    counted = ", ".join(f"{number} {state}" for state, number in states.items())
    room = max(height - 5 - min(len(events), max(height // 4, 2)), 1)
    first = min(max(selected - room + 1, 0), max(len(shown) - room, 0))
    rows = [_row_of(line)[:-1] for line in shown]
    listed = table(_TITLES[:-1], rows, None).split("\n")
    body: list[Text] = []
    for number, text in enumerate(listed[1:][first : first + room], first):
        if number == selected:
            text = Text(text.plain.ljust(columns - 2), style="reverse")
        body.append(Text.assemble("> " if number == selected else "  ", text))
    more = "" if len(shown) <= room else f", {first + 1} to {min(first + room, len(shown))} shown"
    head = Text(f"{clock}  {count(len(shown), 'node')}: {counted}{more}; by {sort}", style="bold")
    problem = Text(f"  {_word(shown[selected].cells[-1])}" if shown else "", style="yellow")
    foot = Text("s sort  up/down choose  Enter look into  q quit", style="dim")
    recent = list(events)[-max(height - 5 - len(body), 0) :] if height - 5 - len(body) > 0 else []
    out = [head, Text.assemble("  ", listed[0]), *body, problem, Text("events", style="bold"), *recent]
    return lines([_cut(text, columns) for text in out[: max(height - 1, 1)]] + [_cut(foot, columns)])


def _word(cell: Cell) -> str:
    return str(cell[0])


def _cut(text: Text, columns: int) -> Text:
    text.truncate(columns, overflow="ellipsis")
    return text


def _rate(line: _Line, of: Callable[[_Traffic], int]) -> str:
    rate = line.rate(of)
    return "-" if rate is None else byte_count(rate)
