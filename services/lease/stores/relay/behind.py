"""The nodes behind this relay, made known above: there too a node counts as connected while its dataplane is."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Final

_SHORTEST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class Behind:
    """A follower of Presence. `run` keeps one stream above for each node that is connected here.

    Each new stream of a node here gets a new one above, since what a node said before does not count any more.
    `keep` opens the one of a node and returns when it has ended, whether it was ever open.
    """

    def __init__(self, keep: Callable[[str], Awaitable[bool]]) -> None:
        self._keep = keep
        self._newest: dict[str, int] = {}
        """The nodes that are connected here, each with the number of its newest stream."""
        self._numbers: Final = count()
        self._news = asyncio.Event()

    def came(self, node: str) -> None:
        """See presence.Follower."""
        self._newest[node] = next(self._numbers)
        self._news.set()

    def went(self, node: str) -> None:
        """See presence.Follower."""
        del self._newest[node]
        self._news.set()

    async def run(self) -> None:
        """For ever."""
        kept: dict[str, tuple[int, asyncio.Task[None]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                await self._news.wait()
                self._news.clear()
                for node in [node for node, (number, _) in kept.items() if self._newest.get(node) != number]:
                    kept.pop(node)[1].cancel()
                for node, number in self._newest.items():
                    if node not in kept:
                        kept[node] = number, group.create_task(self._keep_open(node), name=f"{node} above")

    async def _keep_open(self, node: str) -> None:
        pause = _SHORTEST_PAUSE
        while True:
            pause = _SHORTEST_PAUSE if await self._keep(node) else min(2 * pause, _LONGEST_PAUSE)
            await asyncio.sleep(random.uniform(pause / 2, pause))  # noqa: S311 - jitter
