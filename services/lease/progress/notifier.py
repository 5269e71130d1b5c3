"""Wakes tasks that wait for a change of the table: all of them, or those that wait for one node."""

import asyncio
from collections.abc import Iterable


class Notifier:
    """Read the table first, then wait: nothing may be awaited between the two, so that no change is missed."""

    def __init__(self) -> None:
        self._any = asyncio.Event()
        self._of_node: dict[str, asyncio.Event] = {}
        self._stopped: Exception | None = None

    def wake(self, nodes: Iterable[str] | None) -> None:
        """Wakes the tasks that wait for one of these nodes, and those that wait for any change; None: all tasks."""
        self._any.set()
        self._any = asyncio.Event()
        for node in list(self._of_node) if nodes is None else nodes:
            event = self._of_node.pop(node, None)
            if event is not None:
                event.set()

    def stop(self, error: Exception) -> None:
        """Ends the waits: every `next`, also later ones, raises this error."""
        self._stopped = error
        self.wake(None)

    async def next(self, node: str | None = None) -> None:
        """Returns when anything changes; with a node, only when it concerns that node."""
        if self._stopped is None:
            event = self._any if node is None else self._of_node.setdefault(node, asyncio.Event())
            await event.wait()
        if self._stopped is not None:
            raise self._stopped
