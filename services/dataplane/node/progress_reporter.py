"""Tells the lease service how far the kernel of this node is: ReportProgress."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, Protocol

from flannelette.services.core.conditions import Condition
from flannelette.services.core.errors import FlanneletteError, NotImplementedYet
from flannelette.services.core.leases.lease import FailedLease, Progress
from flannelette.services.runtime.backoff import Backoff, jittered
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 10.0
"""Seconds between attempts, at first and at most; whatever happened meanwhile is told by the next one."""
_SHORTEST_REST: Final = 0.05
_LONGEST_REST: Final = 60.0
"""Seconds between reports, at least and at most, whatever the lease service asks for."""


MOST_FAILED: Final = 50
"""Failed leases in a report, as lease.proto says; more would say no more."""


def progress_after(last: Progress | None, node: str, cursor: str, failed: Mapping[str, str], now: float) -> Progress:
    """How far the node is after a turn. What was reached before stays reached since then."""
    since = last.reached_at if last is not None and last.cursor == cursor else now
    first = sorted(failed)[:MOST_FAILED] if failed else ()
    return Progress(node, cursor, tuple(FailedLease(name, failed[name]) for name in first), len(failed), since)


class ReportCalls(Protocol):
    """What the reporter needs of a lease service."""

    async def report(self, progress: Progress) -> float: ...  # noqa: D102 - see LeaseConnection


class Reporter:
    """One job. What is told last is what is true, at most one call at a time, and no call when nothing is new.

    Everything is told again on each new stream of leases: the service believes nothing that was said before. A
    service of an earlier version, which does not take reports, is not asked again on that stream.
    """

    def __init__(self, calls: ReportCalls) -> None:
        self.findings: Callable[[], tuple[Condition, ...]] = tuple
        """What is wrong with the node, to be told with its progress."""
        self._calls = calls
        self._news: tuple[int, Progress] | None = None
        """What there is to tell, and on which stream."""
        self._told: tuple[int, Progress] | None = None
        self._deaf = 0
        """The stream whose service does not take reports."""
        self._trouble = ""
        self._wake = asyncio.Event()

    def tell(self, progress: Progress | None, stream: int) -> None:
        """What is true now; None: nothing yet. `stream` numbers the streams of leases, 0 while none is open."""
        said = progress and replace(progress, findings=self.findings(), version=version())
        self._news = (stream, said) if said is not None and stream else None
        self._wake.set()

    async def run(self) -> None:
        """Reports progress until cancelled, soon after each change."""
        pauses, rest = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE), 0.0
        while True:
            news = await self._next()
            if rest > _SHORTEST_REST:  # a change reaches all nodes at once, and they would all report it at once
                await asyncio.sleep(jittered(rest, 1.0))
                news = await self._next()
            try:
                rest = min(max(await self._calls.report(news[1]), _SHORTEST_REST), _LONGEST_REST)
            except NotImplementedYet:
                log.info("the lease service is of an earlier version and takes no reports")
                self._deaf, self._told = news[0], None
            except FlanneletteError as error:
                self._complain(str(error))
                await asyncio.sleep(pauses.next())
            else:
                self._told, self._trouble = news, ""
                pauses.reset()
                await asyncio.sleep(max(rest / 2, _SHORTEST_REST))

    async def _next(self) -> tuple[int, Progress]:
        """What is to be told, as soon as there is something."""
        while (news := self._news) is None or news == self._told or news[0] == self._deaf:
            self._wake.clear()
            await self._wake.wait()
        return news

    def _complain(self, reason: str) -> None:
        if reason != self._trouble:
            log.warning("progress could not be reported; trying again", reason=reason)
            self._trouble = reason
