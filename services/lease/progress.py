"""The connected nodes: whose dataplane has a stream open, and how far each one is, by its own reports.

A node is connected while a WatchLeases stream is open that names it (VIEW_ALL). A position is that of the change log:
a node at a position has every change up to it in its kernel. Nothing here knows what a lease says, and nothing is
stored: after a restart the nodes report again.
"""

import asyncio
import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, Protocol

from flannelette.services.core.conditions import MOST_REPORTED
from flannelette.services.core.errors import NameTaken
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Progress
from flannelette.services.core.limits import LONGEST_NAME
from flannelette.services.lease import metrics


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


NOTHING_YET: Final = -1
"""The position of a node that has not reported on its newest stream."""
MOST_FAILED: Final = 50
"""Failed leases that are kept of a node; `failed_count` counts them all."""
_LONGEST_REASON: Final = 500
_SHORTEST_PAUSE: Final = 0.05
_MOST_REPORTS: Final = 1000
"""A second, of all nodes together. Each costs 0.3 to 0.5 ms, most of it the call."""
_KEPT_SECONDS: Final = 3600.0
_MOST_DEPARTED: Final = 10_000
_MOST_TIMES: Final = 20_000
"""Changes whose times are kept."""


class Log(Protocol):
    """The log of the lease table's changes, whose positions nodes report (services/lease/watch.py)."""

    last: int
    """Number of the newest position."""

    def number(self, cursor: str) -> int | None:
        """The position that a cursor names; None: of another epoch, or no cursor."""
        ...


@frozen
class Report:
    """The last report of a node, and its time."""

    progress: Progress
    at: float
    """When it came, in Unix seconds."""


@frozen
class NodeProgress:
    """How far a connected node is."""

    position: int = NOTHING_YET
    reached: float = -math.inf
    """When it got there, on the timer's clock."""
    report: Report | None = None

    @property
    def is_failing(self) -> bool:
        """Whether the node could not program some leases."""
        return self.report is not None and self.report.progress.failed_count > 0


class Reports:
    """The progress of each connected node, and for an hour the last report of a node that is not connected.

    A report counts for the stream on which it came: after a reconnect the node may have been started anew, and
    reports again. A change has converged when every connected node has it; its time is observed once. A change that
    entered while no node was connected, or whose nodes have all disconnected since, is never observed.
    """

    def __init__(
        self,
        log: Log,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        observe: Callable[[float], None] = metrics.CONVERGENCE.observe,
    ) -> None:
        self.connected: dict[str, NodeProgress] = {}
        self.last = NOTHING_YET
        """The newest change in the table."""
        self.notifier = Notifier()
        """Woken when a report or a disconnect may complete convergence."""
        self.waiting = 0
        """Calls that wait for convergence."""
        self._log = log
        self._clock = clock
        self._timer = timer
        self._observe = observe
        self._entered: deque[float] = deque(maxlen=_MOST_TIMES)
        """When each change entered the table; the last entry is that of `last`."""
        self._nodes_at: Counter[int] = Counter()
        """The number of connected nodes at each position."""
        self._converged: deque[tuple[int, float]] = deque(maxlen=_MOST_TIMES)
        """Positions up to which every change had converged, and when; both grow."""
        self._unattended = NOTHING_YET
        """Changes up to here are not observed any more."""
        self._departed: dict[str, tuple[float, Report]] = {}
        """The last report of each disconnected node and the time of the disconnect, oldest first."""
        metrics.NODES_CONNECTED.set_function(lambda: len(self.connected))
        metrics.NODES_BEHIND.set_function(lambda: len(self.connected) - self._nodes_at.get(self.last, 0))
        metrics.NODES_FAILING.set_function(lambda: sum(node.is_failing for node in self.connected.values()))

    @property
    def departed(self) -> Mapping[str, Report]:
        """The last reports of nodes that are not connected."""
        self._drop_old()
        return {node: report for node, (_, report) in self._departed.items()}

    @property
    def pause(self) -> float:
        """Seconds that a node shall wait before it reports again, so that all together are no burden."""
        return max(_SHORTEST_PAUSE, len(self.connected) / _MOST_REPORTS)

    def entered(self) -> None:
        """The newest changes of the log are in the table now."""
        self._entered.extend([self._timer()] * (self._log.last - self.last))
        self.last = self._log.last
        if not self.connected:
            self._unattended = self.last

    def on_connect(self, node: str) -> None:
        """A stream of the node's dataplane was opened."""
        self._departed.pop(node, None)
        self._put(node, NodeProgress())

    def on_disconnect(self, node: str) -> None:
        """The last stream of the node's dataplane has ended."""
        progress = self.connected[node]
        self._put(node, None)
        if not self.connected:
            self._unattended = self.last
        self._observe_converged(self._timer())  # a change that only this node lacked was waited for until now
        if progress.report is not None:
            self._depart(node, progress.report)
        self._wake_waiting()

    def take(self, progress: Progress) -> bool:
        """Takes a report; False: it is ignored, being of another epoch or older than the last one."""
        node, position = progress.node, self._log.number(progress.cursor) if progress.cursor else NOTHING_YET
        known = self.connected.get(node)
        if position is None or position > self.last or (known and NOTHING_YET < position < known.position):
            return False
        report = Report(_bounded(progress), self._clock())
        if known is None:
            self._depart(node, report)
        else:
            now = self._timer()
            reached = now if progress.reached_at is None else min(progress.reached_at, now)
            self._put(node, NodeProgress(position, reached, report))
            self._observe_converged()
        self._wake_waiting()
        return True

    def is_converged(self, position: int) -> bool:
        """Whether every connected node has the change and could program everything, and at least one is connected."""
        return position <= self._lowest() < math.inf and not any(n.is_failing for n in self.connected.values())

    def elapsed(self, position: int) -> float | None:
        """Seconds from the change until all nodes connected then had it, or until now if one lacks it still.

        None: no node has been connected since. At least so long, for a change whose time is forgotten.
        """
        entered = self._entered_at(position)
        if self._lowest() < position:
            return self._timer() - entered
        index = bisect_left(self._converged, (position, -math.inf))
        return max(0.0, self._converged[index][1] - entered) if index < len(self._converged) else None

    async def converged(self, position: int, within: float) -> None:
        """Returns when every connected node has the change, or `within` seconds later. Raises when we stop."""
        self.waiting += 1
        try:
            async with asyncio.timeout(within):
                while not self.is_converged(position):
                    await self.notifier.next()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1

    def _put(self, node: str, progress: NodeProgress | None) -> None:
        before = self.connected.pop(node, None)
        if before is not None:
            self._nodes_at[before.position] -= 1
            if not self._nodes_at[before.position]:
                del self._nodes_at[before.position]
        if progress is not None:
            self.connected[node] = progress
            self._nodes_at[progress.position] += 1

    def _lowest(self) -> float:
        """The position of the connected node that is furthest behind; infinite without any."""
        return min(self._nodes_at, default=math.inf)

    def _observe_converged(self, at: float | None = None) -> None:
        """Observes the changes that all nodes have now: since `at`, None: since the last of them got there."""
        before, lowest = self._converged[-1][0] if self._converged else NOTHING_YET, self._lowest()
        if before < lowest < math.inf:
            at = max(node.reached for node in self.connected.values()) if at is None else at
            for position in range(max(before, self._unattended) + 1, int(lowest) + 1):
                self._observe(max(0.0, at - self._entered_at(position)))
            self._converged.append((int(lowest), at))

    def _entered_at(self, position: int) -> float:
        return self._entered[max(position - self.last - 1, -len(self._entered))]

    def _depart(self, node: str, report: Report) -> None:
        self._departed.pop(node, None)
        self._departed[node] = (self._timer(), report)
        self._drop_old()

    def _drop_old(self) -> None:
        departed, old = self._departed, self._timer() - _KEPT_SECONDS
        while departed and (len(departed) > _MOST_DEPARTED or next(iter(departed.values()))[0] < old):
            del departed[next(iter(departed))]

    def _wake_waiting(self) -> None:
        if self.waiting:
            self.notifier.wake(None)


def _bounded(progress: Progress) -> Progress:
    """What a node may cost us in memory."""
    failed = tuple(
        replace(lease, name=lease.name[:LONGEST_NAME], reason=lease.reason[:_LONGEST_REASON])
        for lease in progress.failed[:MOST_FAILED]
    )
    findings = tuple(finding.bounded() for finding in progress.findings[:MOST_REPORTED])
    return replace(progress, failed=failed, findings=findings, version=progress.version[:LONGEST_NAME])
