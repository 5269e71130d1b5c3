"""When the host is checked, and how findings reach status, log and events.

A look follows each full comparison (so at the start, once a minute, and on request) and each notification of the
kernel about rules, addresses, routes or neighbours that are not ours. A new finding counts once a second look has
confirmed it: a program that replaces an address removes the old one first.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Final, Protocol

from services.core.errors import Unavailable
from services.core.family import FAMILIES, Family
from services.dataplane.diagnose.host_programs import HostFiles
from services.dataplane.diagnose.inspector import Inspector
from services.dataplane.diagnose.look import findings, look, subject_of
from services.dataplane.diagnose.seen import Seen, Subject
from services.dataplane.events.finding import Finding
from services.dataplane.events.journal import Event, EventKind, Journal
from services.dataplane.kernel.programmer import PeerProgrammer
from services.dataplane.netlink.objects import Route
from services.runtime.telemetry.health import Health
from services.runtime.telemetry.logs import get_logger

log = get_logger()

_SETTLE_SECONDS: Final = 0.1
"""One act is many notifications."""
_CONFIRM_SECONDS: Final = 0.5
_REST: Final = 100
"""So many times what the last look took goes by before the next: at most a hundredth of a core."""


class ControllerView(Protocol):
    """The controller, as far as the diagnosis looks at it and tells it what was found."""

    findings: tuple[Finding, ...]
    suspicious: asyncio.Event
    journal: Journal
    health: Health
    programmer: PeerProgrammer

    @property
    def is_paused(self) -> bool: ...  # noqa: D102 - see Controller, also below
    def wake_up(self) -> None: ...  # noqa: D102


class Diagnosis:
    """Looks at the kernel, and gives the dataplane the findings.

    A look may show half of a change, also of one of ours; the next look decides.
    """

    def __init__(self, dataplane: ControllerView, inspector: Inspector, files: HostFiles) -> None:
        self._dataplane = dataplane
        self._inspector = inspector
        self._files = files
        self._round = 0
        self._bridges: dict[Family, int] = {}
        self._remembered: dict[bytes, Route] = {}
        self._suspected: frozenset[Finding] = frozenset()
        """Found once."""
        self._cost = 0.0
        """CPU seconds of the last look."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._dataplane.suspicious.wait()
            await asyncio.sleep(max(_SETTLE_SECONDS, _REST * self._cost))
            self._dataplane.suspicious.clear()
            if await self.look():
                await asyncio.sleep(_CONFIRM_SECONDS)
                await self.look()

    async def look(self) -> bool:
        """Looks and tells. True: there is something new, which another look has to confirm."""
        dataplane, started = self._dataplane, time.thread_time()
        again = [lease for each in dataplane.findings for lease, _ in each.peers]
        subject = subject_of(dataplane.programmer, self._round, again)
        if subject is None or dataplane.is_paused:
            self._tell(())
            return False
        try:
            seen, found = await self._find(subject)
        except Unavailable as error:
            log.warning("the host could not be checked", reason=str(error))
            return False
        known = {_identity(each) for each in (*self._suspected, *dataplane.findings)}
        sure = [each for each in found if _identity(each) in known]
        self._suspected = frozenset(found)
        self._note(subject, seen)
        others = dataplane.programmer.peers.keys() - subject.leases
        self._tell(with_earlier(sure, dataplane.findings, others))
        if any(lease in others for each in dataplane.findings for lease, _ in each.peers):
            dataplane.suspicious.set()  # it may be over, and their turn is far
        self._cost = time.thread_time() - started
        is_new = len(sure) < len(found)
        if not is_new:
            self._round += 1
        return is_new

    async def _find(self, subject: Subject) -> tuple[Seen, tuple[Finding, ...]]:
        subject = replace(subject, bridges=self._bridges, remembered=self._remembered)
        seen = await look(self._inspector, subject, self._files)
        return seen, findings(subject, seen)

    def _note(self, subject: Subject, seen: Seen) -> None:
        self._bridges.update(seen.bridges)
        addresses = {path.public.packed for path in subject.paths if path.public is not None}
        found = {
            question.dst: answer
            for question, answer in seen.answers.items()
            if question.dst in addresses and not question.iif and isinstance(answer, Route) and answer.ifindex
        }
        remember(self._remembered, found, len(FAMILIES) * len(self._dataplane.programmer.peers))

    def _tell(self, found: tuple[Finding, ...]) -> None:
        dataplane = self._dataplane
        before = {_identity(each) for each in dataplane.findings}
        for each in found:
            if _identity(each) not in before:
                log.warning(each.sentence, cause=each.cause, cure=each.cure, check=each.check)
                dataplane.journal.note(Event(EventKind.FAILURE, each.sentence, each.cause))
        left = {_identity(each) for each in found}
        for each in dataplane.findings:
            if _identity(each) not in left:
                log.info("a finding is resolved", cause=each.cause, check=each.check)
        if found != dataplane.findings:
            dataplane.findings = found
            broken = next((each for each in found if each.breaks_node), None)
            reason = f"forwarding is broken: {broken.sentence} {broken.cause}" if broken else ""
            dataplane.health.set("forwarding", reason, of_host=True)
            dataplane.programmer.note_unreachable(_unreachable(found))
            dataplane.wake_up()


def remember(routes: dict[bytes, Route], found: Mapping[bytes, Route], most: int) -> None:
    """Adds the routes to peers' addresses that were `found`, and forgets the oldest: addresses of peers change."""
    for address, route in found.items():
        routes.pop(address, None)
        routes[address] = route
    for address in list(routes)[: max(len(routes) - most, 0)]:
        del routes[address]


def with_earlier(
    found: Iterable[Finding], earlier: Iterable[Finding], not_looked_at: Set[str]
) -> tuple[Finding, ...]:
    """What was found, and what was found earlier with peers that were not looked at this time. Pure."""
    by_identity = {_identity(each): each for each in found}
    for each in earlier:
        rest = tuple(peer for peer in each.peers if peer[0] in not_looked_at)
        now = by_identity.get(_identity(each))
        if rest and now is not None:
            by_identity[_identity(each)] = replace(now, peers=tuple(dict.fromkeys((*now.peers, *rest))))
        elif rest and not each.is_general:
            by_identity[_identity(each)] = replace(each, peers=rest)
    return tuple(by_identity.values())


def _unreachable(found: Iterable[Finding]) -> dict[str, str]:
    """Why peers cannot be reached for certain, by lease name."""
    return {
        lease: f"{each.cause} Cure: {each.cure}" if each.cure else each.cause
        for each in found
        if each.is_broken and not each.breaks_node
        for lease, _ in each.peers
    }


def _identity(finding: Finding) -> tuple[str, str]:
    return finding.cause, finding.cure
