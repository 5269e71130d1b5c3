"""The nodes behind a relay, made known to the lease service above: who is connected, and what each one reports."""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Final

from flannelette.services.core.errors import FlanneletteError
from flannelette.services.core.leases.progress import Progress
from flannelette.services.lease.watch.log import ChangeLog
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.lease.feed import LeaseConnection

_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class NodeStreams:
    """A follower of Presence. `run` keeps one stream above for each machine of a node that is connected here.

    Each new stream of a node here gets a new one above, since what a node said before does not count any more.
    `keep` opens the one of a node's machine and returns when it has ended, whether it was ever open. `machines` are
    those of a node's open streams, the newest last: there may be two until the lease service above refuses one.
    """

    def __init__(self, keep: Callable[[str, str], Awaitable[bool]], machines: Callable[[str], Sequence[str]]) -> None:
        self._keep = keep
        self._machines = machines
        self._newest: dict[tuple[str, str], int] = {}
        """The machines of nodes that are connected here, each with the number of its newest stream."""
        self._numbers: Final = count()
        self._news = asyncio.Event()

    def on_connect(self, node: str) -> None:
        """See ConnectionListener."""
        self._newest[node, self._machines(node)[-1]] = next(self._numbers)
        self._news.set()

    def on_disconnect(self, node: str) -> None:
        """See ConnectionListener."""
        for key in [key for key in self._newest if key[0] == node]:
            del self._newest[key]
        self._news.set()

    async def run(self) -> None:
        """Keeps a stream above open for each connected node until cancelled."""
        kept: dict[tuple[str, str], tuple[int, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await self._news.wait()
                self._news.clear()
                for key in [key for key, (number, _) in kept.items() if self._newest.get(key) != number]:
                    kept.pop(key)[1].cancel()
                for key, number in self._newest.items():
                    if key not in kept:
                        kept[key] = number, group.create_task(self._keep_open(*key), name=f"{key[0]} above")

    async def _keep_open(self, node: str, machine: str) -> None:
        pauses = Backoff(_SHORTEST_PAUSE, _LONGEST_PAUSE)
        while machine in self._machines(node):
            if await self._keep(node, machine):
                pauses.reset()
            await asyncio.sleep(pauses.next())


_MOST_STREAMS: Final = 512
"""Streams on one connection, half of the calls that a lease service takes on it: the rest is for other calls."""


class Connections:
    """The connections to the lease service above, as many as the streams of the nodes here take."""

    def __init__(self, first: LeaseConnection) -> None:
        self._first = first
        self._streams = {first: 0}

    @contextmanager
    def stream(self) -> Iterator[LeaseConnection]:
        """A connection with room for a stream, which it has until the block ends."""
        connection = next((each for each, streams in self._streams.items() if streams < _MOST_STREAMS), None)
        if connection is None:
            connection = self._first.beside()
            self._streams[connection] = 0
        self._streams[connection] += 1
        try:
            yield connection
        finally:
            self._streams[connection] -= 1

    async def close(self) -> None:
        """Closes the connections, which ends open calls."""
        for each in self._streams:
            await each.close()


_MOST: Final = 20_000
"""As many as our own history has entries: older positions nobody reports."""


class Cursors:
    """Positions of our history, growing, each with the newest cursor above whose changes are all in it."""

    def __init__(self) -> None:
        self._positions: list[int] = []
        self._cursors: list[str] = []

    def record(self, position: int, cursor: str) -> bool:
        """Records that our table at this position has everything up to that cursor; returns whether that was not
        known.
        """
        if self._cursors and (self._positions[-1], self._cursors[-1]) == (position, cursor):
            return False
        if self._positions and self._positions[-1] == position:
            self._cursors[-1] = cursor
        else:
            self._positions.append(position)
            self._cursors.append(cursor)
        if len(self._positions) > 2 * _MOST:
            del self._positions[:_MOST], self._cursors[:_MOST]
        return True

    def upstream(self, position: int) -> str:
        """The newest cursor above that a node at our position has; empty: not known."""
        index = bisect_right(self._positions, position)
        return self._cursors[index - 1] if index else ""


class ReportForwarder:
    """The last report of each node: handed on at once, and again when there is reason to think it was forgotten.

    `send` is the call to the lease service above; it returns the pause that is asked for there.
    """

    def __init__(self, change_log: ChangeLog, send: Callable[[Progress], Awaitable[float]]) -> None:
        self._change_log = change_log
        self._send = send
        self._cursors = Cursors()
        self._last: dict[str, Progress] = {}
        self._due: set[str] = set()
        self._news = asyncio.Event()

    async def take(self, progress: Progress) -> float:
        """A node's report, with a cursor of ours. Returns the pause until its next one. Raises Unavailable."""
        self._last[progress.node] = progress
        return await self._hand_on(progress)

    async def repeat(self, node: str) -> None:
        """The last report of a node once more, if there is one; best effort."""
        if progress := self._last.get(node):
            with suppress(FlanneletteError):
                await self._hand_on(progress)

    def reached(self, cursor: str) -> None:
        """Records that our table has everything up to this cursor above.

        Where that made no difference to it, as after a new start above, nobody here reports again: `run` does.
        """
        position = self._change_log.last
        if self._cursors.record(position, cursor):
            ours = self._change_log.cursor
            self._due.update(node for node, said in self._last.items() if said.cursor == ours)
            self._news.set()

    async def run(self) -> None:
        """Sends due reports above until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._due:
                await self.repeat(self._due.pop())

    def on_connect(self, node: str) -> None:
        """See ConnectionListener: what it said before its newest stream counts no more."""
        self._last.pop(node, None)

    def on_disconnect(self, node: str) -> None:
        """See ConnectionListener."""
        self._last.pop(node, None)

    async def _hand_on(self, progress: Progress) -> float:
        if not progress.cursor:
            return await self._send(progress)  # nothing is in its kernel, whatever the cursor
        position = self._change_log.number(progress.cursor)
        upstream = "" if position is None else self._cursors.upstream(position)
        return await self._send(replace(progress, cursor=upstream)) if upstream else 0.0
