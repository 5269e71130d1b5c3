"""Which nodes' dataplanes are connected: those with an open WatchLeases stream that names its node (VIEW_ALL)."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, KeysView, Mapping, Set
from contextlib import contextmanager
from itertools import takewhile
from typing import Final, Protocol

ALIVE_SECONDS: Final = 60.0
"""So long after its last sign of life a node counts as alive: no restart of a service takes longer."""
_REMEMBERED_SECONDS: Final = 86_400.0
"""A node that has been away for longer has no lease any more that an operator could want back."""


class ConnectionListener(Protocol):
    """Is called when a node connects or disconnects."""

    def on_connect(self, node: str) -> None:
        """A stream of its dataplane was opened: the first one, or a newer one."""
        ...

    def on_disconnect(self, node: str) -> None:
        """The last one has ended."""
        ...


class ConnectedNodes:
    """The nodes of this process's open streams; a node with several is there until the last one ends.

    Level-triggered: a task that waits may await other things in between:

        seen = -1
        while True:
            seen = await connected_nodes.changed_since(seen)
            ... read connected_nodes.nodes ...
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.changes = 0
        """How often a node has come or gone."""
        self.elsewhere: Set[str] | None = None
        """The nodes that are connected to any lease service, if the store records that; None: it does not.

        Empty where there is no other lease service.
        """
        self._streams: Counter[str] = Counter()
        self._left: dict[str, float] = {}
        """When the last stream of a node ended, oldest first; those of long ago are forgotten."""
        self._clock = clock
        self._started = clock()
        self._changed = asyncio.Event()
        self._listeners: list[ConnectionListener] = []

    @property
    def nodes(self) -> KeysView[str]:
        """The nodes that are connected now, as a live view."""
        return self._streams.keys()

    @property
    def streams(self) -> Mapping[str, int]:
        """The number of open streams of each of them, as a live view."""
        return self._streams

    def subscribe(self, listener: ConnectionListener) -> None:
        """Calls the listener from now on."""
        self._listeners.append(listener)

    def is_connected(self, node: str) -> bool:
        """Whether it is, to this process or elsewhere. Of who has just left us we know better than a store."""
        if node in self._streams:
            return True
        just_left = self._clock() - self._left.get(node, -math.inf) < ALIVE_SECONDS
        return self.elsewhere is not None and node in self.elsewhere and not just_left

    def knows(self, node: str) -> bool:
        """Whether it can be said of the node that it is not connected: it may be, to a service that we cannot see."""
        return self.elsewhere is not None or node in self._streams or node in self._left

    def seen_ago(self, node: str) -> float:
        """Seconds since the node may have been connected: 0 while it is, and never longer than we can know."""
        return 0.0 if node in self._streams else self._clock() - max(self._left.get(node, 0.0), self._started)

    def lingering(self, seconds: float) -> set[str]:
        """The nodes that disconnected within the last so many seconds, and are not connected."""
        since = self._clock() - seconds
        # In the order of disconnection: the loop ends at the first node that has been away for longer.
        recent = takewhile(lambda node: self._left[node] > since, reversed(self._left))
        return {node for node in recent if node not in self._streams}

    @contextmanager
    def stream(self, node: str) -> Iterator[None]:
        """For the life of one stream the node is there; an empty name is a stream that is no dataplane's."""
        if not node:
            yield
            return
        self._streams[node] += 1
        for listener in self._listeners:
            listener.on_connect(node)
        if self._streams[node] == 1:
            self._note()
        try:
            yield
        finally:
            self._streams[node] -= 1
            if not self._streams[node]:
                del self._streams[node]
                self._leave(node)
                for listener in self._listeners:
                    listener.on_disconnect(node)
                self._note()

    async def changed_since(self, changes: int) -> int:
        """Returns `changes` as soon as it is another than this; at once if a node came or went meanwhile."""
        while self.changes == changes:
            await self._changed.wait()
        return self.changes

    def _leave(self, node: str) -> None:
        now = self._clock()
        self._left.pop(node, None)
        self._left[node] = now
        while now - self._left[oldest := next(iter(self._left))] > _REMEMBERED_SECONDS:
            del self._left[oldest]

    def _note(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()
