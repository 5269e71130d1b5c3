"""How far each connected node is: the last report of its dataplane, and which changes have reached every node.

A position is that of the change log: a node at a position has every change up to it in its kernel.
"""

import asyncio
import math
import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Protocol

from flannelette.services.core.conditions import MOST_REPORTED
from flannelette.services.core.leases.progress import Progress
from flannelette.services.core.limits import LONGEST_NAME
from flannelette.services.lease import metrics
from flannelette.services.lease.progress.notifier import Notifier

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
    """The log of the lease table's changes, whose positions nodes report (services/lease/watch/log.py)."""

    last: int
    """Number of the newest position."""

    def number(self, cursor: str) -> int | None:
        """The position that a cursor names; None: of another epoch, or no cursor."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """The last report of a node, and its time."""

    progress: Progress
    at: float
    """When it came, in Unix seconds."""


@dataclass(frozen=True, slots=True)
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
