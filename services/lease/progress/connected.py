"""The nodes whose dataplanes are connected: those with an open WatchLeases stream that names its node (VIEW_ALL)."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator, KeysView, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, Protocol

from flannelette.services.core.errors import NameTaken

ALIVE_SECONDS: Final = 60.0
"""So long after its last sign of life a node counts as alive: no restart of a service takes longer."""
_NEVER: Final = (-math.inf, "")
_REMEMBERED_SECONDS: Final = 86_400.0
"""A node that has been away for longer has no lease any more that an operator could want back."""


@dataclass(eq=False, slots=True)
class NodeStream:
    """An open stream of a node's dataplane."""

    machine: str
    """The token of the machine; empty: unknown."""
    refusal: str = ""
    """Why it must end: another machine has the node's name."""

    def require_name(self) -> None:
        """Raises NameTaken once another machine is known to have the node's name."""
        if self.refusal:
            raise NameTaken(self.refusal)


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
        self.judge: Callable[[str, str], str] = lambda node, machine: ""
        """Why a machine is not the one that has the node's name, as the store knows; empty: it may be."""
        self.wake: Callable[[], None] = lambda: None
        """Wakes the tasks of the streams, of which some are refused now."""
        self.on_refusal: Callable[[str, str], None] = lambda node, reason: None
        """Called with a node whose stream is refused, and the reason."""
        self._streams: dict[str, list[NodeStream]] = {}
        self._left: dict[str, tuple[float, str]] = {}
        """When the last stream of a node ended, and its machine, oldest first; those of long ago are forgotten."""
        self._clock = clock
        self._started = clock()
        self._changed = asyncio.Event()
        self._listeners: list[ConnectionListener] = []

    @property
    def nodes(self) -> KeysView[str]:
        """The nodes that are connected now, as a live view."""
        return self._streams.keys()

    def of(self, node: str) -> Sequence[NodeStream]:
        """The open streams of a node, the newest last."""
        return self._streams.get(node, ())

    def subscribe(self, listener: ConnectionListener) -> None:
        """Calls the listener from now on."""
        self._listeners.append(listener)

    def is_connected(self, node: str) -> bool:
        """Whether it is, to this process or elsewhere. Of who has just left us we know better than a store."""
        if node in self._streams:
            return True
        just_left = self._clock() - self._left.get(node, _NEVER)[0] < ALIVE_SECONDS
        return self.elsewhere is not None and node in self.elsewhere and not just_left

    def knows(self, node: str) -> bool:
        """Whether it can be said of the node that it is not connected: it may be, to a service that we cannot see."""
        return self.elsewhere is not None or node in self._streams or node in self._left

    def seen_ago(self, node: str, machine: str = "") -> float:
        """Seconds since the node may have been connected: 0 while it is, and never longer than we can know.

        With a machine: since that machine may have been, or one that is not known.
        """
        if any(_may_be(stream.machine, machine) for stream in self.of(node)):
            return 0.0
        left, was = self._left.get(node, _NEVER)
        return self._clock() - max(left if _may_be(was, machine) else 0.0, self._started)

    def lingering(self, seconds: float) -> dict[str, str]:
        """The nodes that disconnected within the last so many seconds, and are not connected; with their machines."""
        since = self._clock() - seconds
        # In the order of disconnection: the loop ends at the first node that has been away for longer.
        recent = takewhile(lambda node: self._left[node][0] > since, reversed(self._left))
        return {node: self._left[node][1] for node in recent if node not in self._streams}

    @contextmanager
    def stream(self, node: str, machine: str = "") -> Iterator[NodeStream]:
        """Counts a node as connected for the life of one stream; an empty name is a stream that is no dataplane's.

        Raises NameTaken where another machine has the node's name; `NodeStream.require_name` does so later.
        """
        stream = NodeStream(machine)
        if not node:
            yield stream
            return
        if reason := self.judge(node, machine):
            self.on_refusal(node, reason)
            raise NameTaken(reason)
        streams = self._streams.setdefault(node, [])
        streams.append(stream)
        for listener in self._listeners:
            listener.on_connect(node)
        if len(streams) == 1:
            self._note()
        try:
            yield stream
        finally:
            self._end(node, stream)

    def refuse(self, node: str, machine: str, reason: str) -> None:
        """Another machine has the node's name: the streams of this one count no longer, and end."""
        refused = [stream for stream in self.of(node) if machine and stream.machine == machine]
        for stream in refused:
            stream.refusal = reason
            self._end(node, stream)
        if refused:
            self.on_refusal(node, reason)
            self.wake()

    def require_name(self, node: str, machine: str) -> None:
        """Raises NameTaken where another machine has the node's name."""
        if reason := self.judge(node, machine):
            raise NameTaken(reason)

    async def changed_since(self, changes: int) -> int:
        """Returns `changes` as soon as it is another than this; at once if a node came or went meanwhile."""
        while self.changes == changes:
            await self._changed.wait()
        return self.changes

    def _end(self, node: str, stream: NodeStream) -> None:
        streams = self._streams.get(node, [])
        if stream not in streams:
            return  # it was refused before it ended
        streams.remove(stream)
        if not streams:
            del self._streams[node]
            if not stream.refusal:
                self._leave(node, stream.machine)
            for listener in self._listeners:
                listener.on_disconnect(node)
            self._note()

    def _leave(self, node: str, machine: str) -> None:
        now = self._clock()
        self._left.pop(node, None)
        self._left[node] = now, machine
        while now - self._left[oldest := next(iter(self._left))][0] > _REMEMBERED_SECONDS:
            del self._left[oldest]

    def _note(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _may_be(machine: str, other: str) -> bool:
    """Whether two tokens may be of one machine, as far as they are known."""
    return not machine or not other or machine == other
