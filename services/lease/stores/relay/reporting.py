"""What the nodes behind this relay report, told above with the cursors that count there. No IO of its own."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from services.core.errors import FlanneletteError
from services.core.progress import Progress
from services.lease.history import History
from services.lease.stores.relay.cursors import Cursors


class Reporting:
    """The last report of each node: handed on at once, and again when there is reason to think it was forgotten.

    `tell` is the call above.
    """

    def __init__(self, history: History, tell: Callable[[Progress], Awaitable[None]]) -> None:
        self._history = history
        self._tell = tell
        self._cursors = Cursors()
        self._last: dict[str, Progress] = {}
        self._due: set[str] = set()
        self._news = asyncio.Event()

    async def take(self, progress: Progress) -> None:
        """A node's report, with a cursor of ours. Raises Unavailable."""
        self._last[progress.node] = progress
        await self._hand_on(progress)

    async def repeat(self, node: str) -> None:
        """The last report of a node once more, if there is one; best effort."""
        if progress := self._last.get(node):
            with suppress(FlanneletteError):
                await self._hand_on(progress)

    def reached(self, cursor: str) -> None:
        """Our table has everything up to this cursor above.

        Where that made no difference to it, as after a new start above, nobody here reports again: `run` does.
        """
        position = self._history.last
        if self._cursors.note(position, cursor):
            here = (node for node, said in self._last.items() if self._history.number(said.cursor) == position)
            self._due.update(here)
            self._news.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._due:
                await self.repeat(self._due.pop())

    def came(self, node: str) -> None:
        """See presence.Follower: what it said before its newest stream counts no more."""
        self._last.pop(node, None)

    def went(self, node: str) -> None:
        """See presence.Follower."""
        self._last.pop(node, None)

    async def _hand_on(self, progress: Progress) -> None:
        if not progress.cursor:
            await self._tell(progress)  # nothing is in its kernel, whatever the cursor
            return
        position = self._history.number(progress.cursor)
        above = "" if position is None else self._cursors.above(position)
        if above:
            await self._tell(replace(progress, cursor=above))
