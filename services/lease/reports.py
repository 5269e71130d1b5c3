"""What the nodes' dataplanes say of their kernels: the last report of each, and what follows from all of them."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from services.core.measures import LONGEST_NAME
from services.core.progress import Progress
from services.lease import metrics
from services.lease.convergence import NOTHING_YET, Convergence
from services.lease.history import History
from services.lease.signals import Signals

MOST_FAILED: Final = 50
"""Failed leases that are kept of a node; `failed_count` counts them all."""
_LONGEST_REASON: Final = 500
_SHORTEST_PAUSE: Final = 0.05
_MOST_REPORTS: Final = 1000
"""A second, of all nodes together. Each costs 0.3 to 0.5 ms, most of it the call."""
_KEPT_SECONDS: Final = 3600.0
_MOST_DEPARTED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Report:
    """What a node said last, and when."""

    progress: Progress
    at: float
    """Unix seconds."""


class Reports:
    """The last report of each connected node, and for an hour that of a node that is not.

    What a node said before its newest stream is not believed any more: it may have been started anew. It says it
    again as soon as its stream is there.
    """

    def __init__(
        self,
        history: History,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        self.convergence = Convergence(timer, metrics.CONVERGENCE.observe)
        self.connected: dict[str, Report | None] = {}
        """None: it has said nothing yet."""
        self.signals = Signals()
        """Woken whenever somebody may have come closer."""
        self.waiting = 0
        """How many wait for convergence."""
        self._history = history
        self._clock = clock
        self._timer = timer
        self._departed: dict[str, tuple[float, Report]] = {}
        """With the time since when, oldest first."""
        metrics.NODES_CONNECTED.set_function(lambda: len(self.connected))
        metrics.NODES_BEHIND.set_function(lambda: self.convergence.nodes_behind)
        metrics.NODES_FAILING.set_function(lambda: len(self.convergence.failing))

    @property
    def departed(self) -> Mapping[str, Report]:
        """The last reports of nodes that are not connected."""
        self._tidy()
        return {node: report for node, (_, report) in self._departed.items()}

    @property
    def pause(self) -> float:
        """Seconds that a node shall wait before it reports again, so that all together are no burden."""
        return max(_SHORTEST_PAUSE, len(self.connected) / _MOST_REPORTS)

    def entered(self) -> None:
        """The newest changes of the history are in the table now."""
        for position in range(self.convergence.last + 1, self._history.last + 1):
            self.convergence.entered(position)

    def came(self, node: str) -> None:
        """A stream of the node's dataplane was opened."""
        self.connected[node] = None
        self._departed.pop(node, None)
        self.convergence.place(node, NOTHING_YET)

    def went(self, node: str) -> None:
        """Its last stream has ended."""
        report = self.connected.pop(node)
        self.convergence.forget(node)
        if report is not None:
            self._keep(node, report)
        self._tell_waiting()

    def take(self, progress: Progress) -> bool:
        """Takes a report; False: it says nothing, being of another epoch or older than the last one."""
        node, position = progress.node, self._history.number(progress.cursor) if progress.cursor else NOTHING_YET
        if position is None or position > self.convergence.last:
            return False
        before = self.convergence.position(node)
        if before is not None and NOTHING_YET < position < before:
            return False
        report = Report(_bounded(progress), self._clock())
        if node in self.connected:
            self.connected[node] = report
            self.convergence.place(node, position, since=progress.reached_at, failing=progress.failed_count > 0)
        else:
            self._keep(node, report)
        self._tell_waiting()
        return True

    async def converged(self, position: int, within: float) -> None:
        """Returns as soon as every connected node has it, or `within` seconds later. Raises when we stop."""
        self.waiting += 1
        try:
            async with asyncio.timeout(within):
                while not self.convergence.is_converged(position):
                    await self.signals.next()
        except TimeoutError:
            pass
        finally:
            self.waiting -= 1

    def _keep(self, node: str, report: Report) -> None:
        self._departed.pop(node, None)
        self._departed[node] = (self._timer(), report)
        self._tidy()

    def _tidy(self) -> None:
        departed, old = self._departed, self._timer() - _KEPT_SECONDS
        while departed and (len(departed) > _MOST_DEPARTED or next(iter(departed.values()))[0] < old):
            del departed[next(iter(departed))]

    def _tell_waiting(self) -> None:
        if self.waiting:
            self.signals.wake(None)


def _bounded(progress: Progress) -> Progress:
    """What a node may cost us in memory."""
    failed = tuple(
        replace(lease, name=lease.name[:LONGEST_NAME], reason=lease.reason[:_LONGEST_REASON])
        for lease in progress.failed[:MOST_FAILED]
    )
    return replace(progress, failed=failed)
