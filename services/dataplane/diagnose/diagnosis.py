"""When the host is checked, and how findings reach status, log and events.

A look follows each full comparison (so at the start, once a minute, and on request) and each notification of the
kernel about rules, addresses, routes or neighbours that are not ours. A new finding counts once a second look has
confirmed it: a program that replaces an address removes the old one first.

One thing is mended and not told: the interface of a pod that has left the bridge of which CNI made it a port.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from flannelette.services.core.conditions import Condition
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import FAMILIES, Family
from flannelette.services.core.pod_addresses import Looks, Reservation, counted, leaked
from flannelette.services.dataplane.diagnose.host_programs import HostFiles, flannelds
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.diagnose.look import findings, look, subject_of
from flannelette.services.dataplane.diagnose.paths import detours
from flannelette.services.dataplane.diagnose.pods import (
    addresses_judged,
    known_pods,
    mendings,
    ports_of,
    recorded_gateways,
    silent_places,
)
from flannelette.services.dataplane.diagnose.seen import KernelSnapshot, KnownPods, Subject, gateway_of
from flannelette.services.dataplane.events import Cause, Event, NodeEventKind, NodeJournal
from flannelette.services.dataplane.kernel.programmer import PeerProgrammer
from flannelette.services.dataplane.links import actual
from flannelette.services.dataplane.links.interfaces import LinkChange
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.netlink.uapi import NUD_PERMANENT, NUD_REACHABLE
from flannelette.services.runtime.os.processes import Process
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_SETTLE_SECONDS: Final = 0.1
"""One act is many notifications."""
_CONFIRM_SECONDS: Final = 0.5
_MENDED_AT_ONCE: Final = 5
"""Times within the window that the interface of one pod is put back."""
_MENDED_WINDOW: Final = 60.0
"""Length of the window, in seconds."""
_RESOLVE_SECONDS: Final = 30.0
"""Seconds between two requests about one pod; the looks of audits are farther apart."""
_SILENT_SECONDS: Final = 5.0
"""Seconds between two requests, and between two looks, while a finding may end or become graver without a
notification."""
_CONFIRMED: Final = NUD_REACHABLE | NUD_PERMANENT
_MOST_TABLES: Final = 4
"""Tables whose routes to an address are remembered, at most: main, and those of a few rules of policy routing."""
_REST: Final = 100
"""So many times what the last look took goes by before the next: at most a hundredth of a core."""


class ControllerView(Protocol):
    """The controller, as far as the diagnosis looks at it and tells it what was found."""

    findings: tuple[Condition, ...]
    known_pods: KnownPods
    detours: Mapping[str, Condition]
    suspicious: asyncio.Event
    journal: NodeJournal
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
        self._ports: dict[int, tuple[str, str]] = {}
        self._gateways: dict[bytes, float] = {}
        """Time since when the bridge lacks each address to which pods send; `inf`: it has it."""
        self._mended: dict[int, deque[float]] = {}
        """Times of recent repairs, by interface of a pod."""
        self._resolved: dict[tuple[bytes, int], float] = {}
        """Time of the last request to the kernel about each pod."""
        self._remembered: dict[bytes, tuple[Route, ...]] = {}
        self._dead: dict[Reservation, Looks] = {}
        self._suspected: frozenset[Condition] = frozenset()
        """Findings of the last look, which are reported once another look has them too."""
        self._cost = 0.0
        """CPU seconds of the last look."""
        self._flannelds: Sequence[Process] = ()
        self._compared: float | None = None
        """Time of the last full comparison that a scan of the processes has followed."""

    async def run(self) -> None:
        """Checks the host whenever something looks suspicious, until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SILENT_SECONDS if self._is_short_lived() else None):
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
        now = time.monotonic()
        subject = replace(
            subject,
            bridges=self._bridges,
            remembered=self._remembered,
            ports=self._ports,
            leaked=leaked(self._dead),
            gateways={address: now - since for address, since in self._gateways.items()},
        )
        try:
            seen = await look(self._inspector, subject, self._files, self._running())
        except (OSError, Unavailable) as error:
            log.warning("the host could not be checked", reason=str(error))
            return False
        found = findings(subject, seen)
        known = {_identity(each) for each in (*self._suspected, *dataplane.findings)}
        sure = [each for each in found if _identity(each) in known]
        self._suspected = frozenset(found)
        self._note(subject, seen)
        await self._mend(subject, seen)
        await self._resolve(subject, seen)
        others = dataplane.programmer.peers.keys() - subject.leases
        self._tell(with_earlier(sure, dataplane.findings, others))
        if any(lease in others for each in dataplane.findings for lease, _ in each.peers):
            dataplane.suspicious.set()  # it may be over, and their turn is far
        self._cost = time.thread_time() - started
        is_new = len(sure) < len(found)
        if not is_new:
            self._round += 1
        return is_new

    def _running(self) -> Sequence[Process]:
        """The flannelds; every process is looked at after a full comparison only, or where one was found."""
        compared = self._dataplane.programmer.last_resync
        if self._flannelds or compared != self._compared:
            self._flannelds, self._compared = flannelds(self._files), compared
        return self._flannelds

    async def _mend(self, subject: Subject, seen: KernelSnapshot) -> None:
        """Puts interfaces of pods back into their bridge; if something takes them out again and again, it is told."""
        now, steps = time.monotonic(), list[LinkChange]()
        for index in self._mended.keys() - seen.links.keys():
            del self._mended[index]
        for step in mendings(subject, seen):
            times = self._mended.setdefault(step.arguments["index"], deque(maxlen=_MENDED_AT_ONCE))
            if len(times) < _MENDED_AT_ONCE or times[0] < now - _MENDED_WINDOW:
                steps.append(step)
        if not steps:
            return
        outcome = await actual.carry_out(steps)
        done = outcome.done
        if outcome.error is not None:
            log.warning("the interface of a pod was not put back", reason=str(outcome.error))
        for index in {step.arguments["index"] for step in done}:
            self._mended[index].append(now)
        if done:
            commands = "; ".join(step.command for step in done)
            cause = " ".join({seen.managers[i] for s in done if (i := s.arguments["index"]) in seen.managers})
            count = len({step.arguments["index"] for step in done})
            why = f"another program took it from there. {cause}".rstrip()
            note = Event(NodeEventKind.REPAIR, f"repaired: {commands}", why, objects=count, repair=Cause.LINK_CHANGED)
            self._dataplane.journal.note(note)

    def _is_short_lived(self) -> bool:
        """Whether there is a finding that ends, or becomes graver, without a notification."""
        findings = self._dataplane.findings
        return any(each.check == "pod-silent" or each.is_soon for each in findings)

    async def _resolve(self, subject: Subject, seen: KernelSnapshot) -> None:
        """Has the kernel ask for pods that it has not confirmed recently; the next look sees the answer."""
        now = time.monotonic()
        places = silent_places(subject, seen)
        self._resolved = {place: self._resolved[place] for place in places if place in self._resolved}
        confirmed = {place for place, state in seen.pod_neighbours.items() if state.state & _CONFIRMED}
        rest = _SILENT_SECONDS if self._is_short_lived() else _RESOLVE_SECONDS
        due = [e for e in places if e not in confirmed and self._resolved.get(e, -math.inf) <= now - rest]
        self._resolved |= dict.fromkeys(due, now)
        await self._inspector.resolve(due)

    def _note(self, subject: Subject, seen: KernelSnapshot) -> None:
        self._bridges.update(seen.bridges)
        self._ports = ports_of(subject, seen)
        self._dead = counted(self._dead, addresses_judged(subject, seen), time.monotonic())
        self._note_gateways(subject, seen)
        dataplane = self._dataplane
        dataplane.known_pods = known_pods(subject, seen)
        others = dataplane.programmer.peers.keys() - subject.leases
        rest = {lease: each for lease, each in dataplane.detours.items() if lease in others}
        dataplane.detours = rest | detours(subject, seen)
        addresses = {path.public.packed for path in subject.paths if path.public is not None}
        found = {
            question.dst: answer
            for question, answer in seen.answers.items()
            if question.dst in addresses and not question.iif and isinstance(answer, Route) and answer.ifindex
        }
        remember(self._remembered, found, len(FAMILIES) * len(self._dataplane.programmer.peers))

    def _note_gateways(self, subject: Subject, seen: KernelSnapshot) -> None:
        held, now = {(each.ifindex, each.address) for each in seen.addresses}, time.monotonic()
        for family, index in seen.bridges.items():
            recorded = recorded_gateways(subject, seen, family)
            for gateway in recorded or {gateway_of(subject.own[family]).packed}:
                if (index, gateway) in held:
                    self._gateways[gateway] = math.inf
                elif gateway in recorded or gateway in self._gateways:
                    self._gateways[gateway] = min(self._gateways.get(gateway, now), now)

    def _tell(self, found: tuple[Condition, ...]) -> None:
        dataplane = self._dataplane
        before = {_identity(each) for each in dataplane.findings}
        for each in found:
            if _identity(each) not in before:
                log.warning(each.problem, cause=each.cause, cure=each.cure, check=each.check)
                dataplane.journal.note(Event(NodeEventKind.FAILURE, each.problem, each.cause))
        left = {_identity(each) for each in found}
        for each in dataplane.findings:
            if _identity(each) not in left:
                log.info("a finding is resolved", cause=each.cause, check=each.check)
        if found != dataplane.findings:
            dataplane.findings = found
            broken = next((each for each in found if each.breaks_node), None)
            reason = f"forwarding is broken: {broken.problem} {broken.cause}" if broken else ""
            dataplane.health.set("forwarding", reason, of_host=True)
            dataplane.programmer.note_unreachable(_unreachable(found))
            dataplane.wake_up()


def remember(routes: dict[bytes, tuple[Route, ...]], found: Mapping[bytes, Route], most: int) -> None:
    """Adds the routes to peers' addresses that were `found`, and forgets the oldest: addresses of peers change.

    Of each address it keeps the last route of each of the last _MOST_TABLES tables: a rule of policy routing may go,
    and its table with it.
    """
    for address, route in found.items():
        others = [each for each in routes.pop(address, ()) if each.table != route.table]
        routes[address] = (route, *others)[:_MOST_TABLES]
    for address in list(routes)[: max(len(routes) - most, 0)]:
        del routes[address]


def with_earlier(
    found: Iterable[Condition], earlier: Iterable[Condition], not_looked_at: Set[str]
) -> tuple[Condition, ...]:
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


def _unreachable(found: Iterable[Condition]) -> dict[str, str]:
    """Why peers cannot be reached for certain, by lease name."""
    return {
        lease: f"{each.cause} Cure: {each.cure}" if each.cure else each.cause
        for each in found
        if each.is_broken and not each.breaks_node
        for lease, _ in each.peers
    }


def _identity(finding: Condition) -> tuple[str, str]:
    return finding.cause, finding.cure
