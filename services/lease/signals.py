"""Wakes those who wait for news of the table: everybody, or whom one node concerns."""

import asyncio
from collections.abc import Iterable


class Signals:
    """Look first, then wait: between a look at the table and `next` nothing may be awaited, so no news is missed."""

    def __init__(self) -> None:
        self._any = asyncio.Event()
        self._of_node: dict[str, asyncio.Event] = {}
        self._stopped: Exception | None = None

    def wake(self, nodes: Iterable[str] | None) -> None:
        """Something changed: in the leases of these nodes, or (None) what concerns all."""
        self._any.set()
        self._any = asyncio.Event()
        for node in list(self._of_node) if nodes is None else nodes:
            event = self._of_node.pop(node, None)
            if event is not None:
                event.set()

    def stop(self, error: Exception) -> None:
        """From now on, `next` raises this."""
        self._stopped = error
        self.wake(None)

    async def next(self, node: str | None = None) -> None:
        """Returns when anything changes; with a node, only when it concerns that node."""
        if self._stopped is None:
            event = self._any if node is None else self._of_node.setdefault(node, asyncio.Event())
            await event.wait()
        if self._stopped is not None:
            raise self._stopped
