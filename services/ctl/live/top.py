"""`flannelette top`: the cluster as it is now, on the whole terminal."""

import asyncio
import signal
import time
from collections import deque
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from rich.text import Text

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.services.ctl.answers import assess_all
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, Channels, channel_to
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Target
from flannelette.services.ctl.full_screen import full_screen, run
from flannelette.services.ctl.node_health import NodeHealth
from flannelette.services.ctl.render.layout import lines, table
from flannelette.services.ctl.render.overview import condition_of, overview_row
from flannelette.services.ctl.render.peers import peers_text
from flannelette.services.ctl.render.screen import Screen
from flannelette.services.ctl.render.status import status_text
from flannelette.services.ctl.render.top import SORTS, TITLES, Line, Traffic, document_of, page, row_of
from flannelette.services.ctl.units import moment

_PAUSE: Final = 2.0
"""Seconds between two questions to every node."""
_FIRST_PAUSE: Final = 1.0
"""Before the second one: traffic is known after two."""
_RETRY_PAUSE: Final = 3.0
_KEPT: Final = 200
_SINCE_SECONDS: Final = 600
"""Events before the start that are shown."""
_UP: Final = ("\x1b[A", "\x1bOA", "k")
_DOWN: Final = ("\x1b[B", "\x1bOB", "j")


def top(nodes: Nodes, screen: Screen) -> int:
    """Shows the nodes until `q` or Ctrl-C; in a pipe one table, and ends: with 2 where no node has answered."""
    view = _Top(nodes)
    if screen.width is None or screen.json or screen.console.is_dumb_terminal:
        return run(view.print_once(screen)) or (2 if view.is_silent else 0)
    return run(view.show(screen))


class _Top:
    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._lines: dict[str, Line] = {}
        self._health: dict[str, NodeHealth] = {}
        self._events: deque[tuple[float, Text]] = deque(maxlen=_KEPT)
        self._peers: list[pb.Peer] = []
        self._sort = next(iter(SORTS))
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
            screen.show_json([document_of(line) for line in self._sorted()])
        else:
            screen.show(table(TITLES, [row_of(line) for line in self._sorted()], None))

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
            sorts = [*SORTS]
            self._sort = sorts[(sorts.index(self._sort) + 1) % len(sorts)]
        elif self._is_inside:
            self._above = max(self._above + (key in _DOWN) - (key in _UP), 0)
        elif key in _UP or key in _DOWN:
            self._chosen = order[max(at - 1, 0) if key in _UP else min(at + 1, len(order) - 1)]
        self._news.set()

    def _sorted(self) -> list[Line]:
        return sorted(self._lines.values(), key=SORTS[self._sort])

    def _page(self, size: tuple[int, int]) -> Text:
        shown = self._sorted()
        names = [line.name for line in shown]
        selected = names.index(self._chosen) if self._chosen in names else 0
        events = [text.copy() for _, text in sorted(self._events, key=lambda event: event[0])]
        clock = f"{datetime.now():%H:%M:%S}"
        return page(shown, events, sort=self._sort, selected=selected, clock=clock, size=size)

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
        while True:
            with suppress(CallFailed):
                async with channel_to(target) as channel:
                    async for event in DataplaneServiceStub(channel).WatchEvents(request):
                        request.after = event.position
                        when = moment(event.time).astimezone()
                        text = Text.assemble((f"{when:%H:%M:%S}", "dim"), " ", (name, "bold"), f"  {event.what}")
                        self._events.append((when.timestamp(), text))
                        self._news.set()
            await asyncio.sleep(_RETRY_PAUSE)


def _line(name: str, node: NodeHealth, before: Traffic | None, time: float) -> Line:
    title, state, _, _, peers, answer, _, problem = overview_row(name, node)
    cells, condition = (title, state, peers, answer, problem), condition_of(node)
    if isinstance(node.answers.dataplane, CallFailed):
        return Line(cells, condition)
    status = node.answers.dataplane.status
    counted = [device for device in status.devices if device.HasField("received_bytes")]
    received, sent = sum(device.received_bytes for device in counted), sum(device.sent_bytes for device in counted)
    loss = status.probes.loss if status.probes.HasField("loss") else None
    now = Traffic(time, received, sent) if counted else None
    programmed = status.peers.programmed, status.peers.total - status.peers.ignored
    answering = (status.probes.answering, status.probes.probed) if status.probes.probed else None
    return Line(cells, condition, programmed, answering, status.probes.round_trip_microseconds, loss, before, now)
