"""Holds the lease of this node: acquires, renews in time, acquires again when it is lost; says what is wrong with it.

The node restores an overwritten key at once, so that no packet is lost. Two nodes of one name, or a node and a
script, would overwrite each other at full speed: after the first few repairs there are pauses.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from enum import Enum
from typing import Final, Protocol

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import FlanneletteError, NotFound
from flannelette.services.core.family import Network, family_of
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.events import Event, NodeEventKind, NodeJournal
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.telemetry.logs import get_logger

_WINDOW: Final = 60.0
"""Seconds within which losses of the lease are counted."""
_AT_ONCE: Final = 3
"""So many losses in a window are answered at once. With the pauses after them it is at most some 20 a minute."""
_FIGHT: Final = 2
"""So many losses in a window are told: once is a mistake."""


MOST_SKEW_SECONDS: Final = 10.0
"""Seconds by which two clocks may differ. Leases are renewed by durations, so that less does no harm but to the order
of events; more is a clock that nobody sets, which ends in certificates that are not valid yet, or no longer.
"""


class OverwriteCounter:
    """Counts how often the own lease was overwritten in the last minute, on a clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._times: deque[float] = deque()
        self._last = ""

    @property
    def count(self) -> int:
        """How many there were in the last minute."""
        while self._times and self._times[0] <= self._clock() - _WINDOW:
            self._times.popleft()
        return len(self._times)

    @property
    def is_answered_at_once(self) -> bool:
        """Whether there are still so few that there need not be a pause."""
        return 0 < self.count <= _AT_ONCE

    def note(self, reason: str) -> None:
        """Counts one more overwriting, now."""
        self._times.append(self._clock())
        self._last = reason

    def contested_key(self, lease: Lease | None) -> Condition | None:
        """Returns a finding if another program writes the key of this lease again and again."""
        if lease is None or self.count < _FIGHT:
            return None
        evidence = f"{self._last}; the node restores it, at most some 20 times a minute"
        return found("node.own-key", node=lease.node, lease=lease.name, count=self.count, evidence=evidence)


def own_findings(lease: Lease | None, failures: Sequence[str], clock_ahead: float, now: float) -> Iterator[Condition]:
    """What is found now. `failures`: of the renewals since the last that succeeded; `clock_ahead`: of the lease
    service's clock before ours; `now`: Unix time.
    """
    if lease is not None and lease.expires_at is not None and len(failures) > 1:  # one may be a restart
        over = datetime.fromtimestamp(lease.expires_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        is_over = lease.expires_at <= now
        yield found(
            "node.own-lease",
            lease=lease.name,
            runs="ran" if is_over else "runs",
            time=over,
            reason=failures[-1],
            evidence="without the lease, another node may get the subnet, and peers remove their routes",
        )
    if abs(clock_ahead) > MOST_SKEW_SECONDS:
        where = "behind" if clock_ahead > 0 else "ahead of"
        evidence = "the time in the lease service's answer to ReportProgress"
        yield found("node.clock", seconds=f"{abs(clock_ahead):.0f}", where=where, evidence=evidence)


log = get_logger()

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 10.0
_STEADY: Final = 30.0
"""A lease that is lost sooner than this counts as a failure, but for the first few; see OverwriteCounter."""
_TOLD_BY_THEN: Final = 10.0
"""Seconds after which the table has a lease that was acquired, or others took it before anybody saw it there.

Three times as many each time that this was so: when thousands of nodes start at once, tables come late."""
_TOLD_AT_LAST: Final = 300.0
_MOST_FORMER: Final = 16
_CHANGED: Final = "changed by another program"
_RESERVATION_RENEWAL: Final = 6 * 3600.0
"""Seconds. A reservation never ends, but in etcd the note of who holds it lives on a lease of 24 h."""
_RENEW_AGAIN: Final = 60.0
"""Seconds after a failed renewal, as in flannel; less for a lease that would not live so long."""
_SHORTEST_RENEWAL: Final = 1.0
"""Also of a lease that has run out already, as far as can be told."""
_LEAST_BEFORE_MARGIN: Final = 30.0
"""Seconds. A lease that leaves less before the margin begins is no longer than that, and renewed at half of its life.

The largest margin, 1439 minutes, leaves one minute of a day.
"""


def seconds_since_boot() -> float:
    """Seconds since the machine started, including suspended time; nobody can set this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LeaseCalls(Protocol):
    """What the holder needs of a lease service."""

    async def acquire(self, request: LeaseRequest) -> Lease: ...  # noqa: D102 - see LeaseConnection, also below
    async def renew(self, name: str) -> Lease: ...  # noqa: D102


class Step(Enum):
    """What a holder of a lease does next."""

    WAIT = "wait"
    ACQUIRE = "acquire"
    RENEW = "renew"


@frozen
class DesiredLease:
    """What the node is to hold, as the control loop has said last."""

    request: LeaseRequest | None = None
    """None: nothing, as before the first request, and when the lease is flanneld's."""
    network: NetworkConfig | None = None
    """Says which of the subnets that the node has had may be asked for again."""
    is_paused: bool = False
    """No lease is sought, and one that is gone is let go."""


@frozen
class Held:
    """The lease that the node has, and what is known of it. Times are those of a timer."""

    lease: Lease | None = None
    """The last lease known to be ours; it stays in force while a new one is sought."""
    reason: str = "no lease yet"
    """Why the lease is missing or in doubt; empty when it is held."""
    due: float | None = None
    """When to renew; None: never."""
    over: float = math.inf
    """When the lease runs out."""
    unrenewed: tuple[str, ...] = ()
    """Why renewals have failed since the last that did not; the last two."""
    acquired_at: float = -math.inf
    is_confirmed: bool = False
    """The table had the lease since it was acquired; from then on its absence means something."""
    told_by: float = _TOLD_BY_THEN
    """Seconds from `acquired_at` after which its absence means something in any case."""
    lost_unheld: str = ""
    """A lease that the store has lost, told while one is being acquired: the answer may bring it."""

    def next_step(self, wanted: DesiredLease, now: float) -> Step:
        """What to do now."""
        if wanted.request is None or (wanted.is_paused and self.reason):
            return Step.WAIT
        if self.reason:
            return Step.ACQUIRE
        return Step.RENEW if self.due is not None and now >= self.due else Step.WAIT

    def with_lease(self, lease: Lease, now: float, left: float, margin: float) -> "Held":
        """The lease is ours for `left` seconds, and is renewed `margin` seconds before."""
        over, due = math.inf, now + _RESERVATION_RENEWAL if lease.reserved else None
        if lease.expires_at is not None:
            before = left - margin
            wait = before if before >= _LEAST_BEFORE_MARGIN else left / 2
            over, due = now + left, now + max(wait, _SHORTEST_RENEWAL)
        return replace(self, lease=lease, reason="", due=due, over=over, unrenewed=())

    def not_renewed(self, error: str, now: float) -> tuple["Held", float]:
        """Returns what is known after a failed renewal, and the seconds until the next one."""
        pause = min(_RENEW_AGAIN, max((self.over - now) / 4, _SHORTEST_RENEWAL))
        return replace(self, due=now + pause, unrenewed=(*self.unrenewed, error)[-2:]), pause

    def seen_in(self, table: Table, now: float) -> tuple["Held", str]:
        """Returns what is known now, and what became of a lease that a synced table lacks; empty: it has it."""
        if self.lease is None or not table.synced:
            return self, ""
        seen = table.leases.get(self.lease.name)
        if seen is not None and _says_the_same(seen, self.lease):
            return replace(self, is_confirmed=True, told_by=_TOLD_BY_THEN), ""
        if not self.is_confirmed and now - self.acquired_at <= self.told_by:
            return self, ""
        told_by = self.told_by if self.is_confirmed else min(3 * self.told_by, _TOLD_AT_LAST)
        is_held = seen is not None and seen.node == self.lease.node
        return replace(self, told_by=told_by), _CHANGED if is_held else "revoked"


class LeaseRenewer:
    """One job. `lease` is the last lease we know to be ours; it stays in force while a new one is sought.

    `margin_seconds` before it runs out it is renewed. `clock` is Unix time, and only says what that means for an
    answer of the lease service: whatever is done to it later, the renewal is due when `timer` says so. `former` are
    subnets that an earlier process had.
    """

    def __init__(
        self,
        connection: LeaseCalls,
        margin_seconds: float,
        changed: Callable[[], None],
        journal: NodeJournal,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = seconds_since_boot,
        former: Iterable[Network] = (),
    ) -> None:
        self.previous_subnets = list(former)
        """Subnets that the node has had, the last one first: who undoes a change finds the old ones again."""
        self._connection = connection
        self._margin = margin_seconds
        self._changed = changed
        self._journal = journal
        self._clock = clock
        self._timer = timer
        self._wanted = DesiredLease()
        self._held = Held()
        self._losses = OverwriteCounter(timer)
        self._pauses = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        self._wake = asyncio.Event()

    @property
    def lease(self) -> Lease | None:
        """The last lease that is known to be ours."""
        return self._held.lease

    @property
    def reason(self) -> str:
        """Why the lease is missing or in doubt; empty when it is held."""
        return self._held.reason

    @property
    def unrenewed(self) -> tuple[str, ...]:
        """Why renewals have failed since the last that did not; the last two."""
        return self._held.unrenewed

    @property
    def renew_at(self) -> float | None:
        """Unix time of the next renewal; None: never."""
        return None if self._held.due is None else self._clock() + self._held.due - self._timer()

    def set_request(self, request: LeaseRequest, network: NetworkConfig | None = None) -> None:
        """What to publish from now on; acquires when it differs from what is held.

        `network` says which of the subnets that the node has had may be asked for again: the store's, also while
        the node itself keeps another one in force, because a new lease is chosen by it.
        """
        before, self._wanted = self._wanted, DesiredLease(request, network)
        if before.is_paused:
            self._wake.set()
        if request != before.request:
            self._held = replace(self._held, acquired_at=-math.inf)  # no loss, for we ask: peers need what is new
            self._doubt("the lease is being acquired")

    def stop(self) -> None:
        """Neither acquires nor renews until the next request: the lease is flanneld's."""
        self._wanted, self._held = replace(self._wanted, request=None), replace(self._held, due=None)
        self._wake.set()

    def pause(self) -> None:
        """Renews as before; but no lease is sought, and one that is gone is let go, until something is wanted again.

        A call that is under way may still bring one.
        """
        self._wanted = replace(self._wanted, is_paused=True)

    def invalidate(self, reason: str) -> None:
        """Acquires again, unless that is under way already, or in a pause."""
        if self.reason:
            return
        if self._wanted.is_paused:
            log.info("lease gone; none is acquired while paused", reason=reason)
            self._note("own lease gone; none is acquired while paused", reason)
            self._wanted, self._held = replace(self._wanted, request=None), replace(self._held, lease=None, due=None)
            self._doubt(reason)
        else:
            log.warning("lease lost; acquiring again", reason=reason)
            self._note("own lease lost; acquiring again", reason)
            self._doubt(reason)

    @property
    def contested_key(self) -> Condition | None:
        """Returns a finding if another program writes the key of the lease again and again."""
        return self._losses.contested_key(self.lease)

    def hear_of_loss(self, name: str) -> None:
        """The store has lost this lease, or another program has overwritten it, although the table still has it."""
        if self.lease is not None and self.lease.name == name and not self.reason:
            self._lose_to_others(f"the store has lost the lease {name}, or another program has overwritten it")
        else:
            self._held = replace(self._held, lost_unheld=name)

    def observe(self, table: Table) -> None:
        """Looks whether a synced table still has the own lease as we published it."""
        self._wanted = replace(self._wanted, network=table.network or self._wanted.network)
        self._held, what = self._held.seen_in(table, self._timer())
        if what and self.lease is not None and not (what == _CHANGED and self._wanted.is_paused):
            self._lose_to_others(f"the lease {self.lease.name} was {what}")

    async def run(self) -> None:
        """Holds the lease until cancelled."""
        while True:
            step = self._held.next_step(self._wanted, self._timer())
            if step is Step.ACQUIRE:
                await self._acquire()
            elif step is Step.RENEW:
                await self._renew()
            else:
                await self._sleep(None if self.reason else self._held.due)

    async def _acquire(self) -> None:
        time_of = asyncio.get_running_loop().time
        if self._timer() - self._held.acquired_at < _STEADY and not self._losses.is_answered_at_once:
            await self._back_off(time_of())
        wanted, asked_at = self._wanted, time_of()
        request = wanted.request
        if request is None or wanted.is_paused:
            return  # meanwhile nothing is wanted any more, or not now
        self._held = replace(self._held, lost_unheld="")
        try:
            lease = await self._connection.acquire(_with_previous(request, self.previous_subnets, wanted.network))
        except FlanneletteError as error:
            self._report(str(error))
            await self._back_off(asked_at)
            return
        if self.lease is None or lease.name != self.lease.name:
            log.info("lease acquired", lease=lease.name, previous=self.lease.name if self.lease else None)
        cidrs = ", ".join(str(cidr) for cidr in lease.cidrs)
        self._note(f"own lease acquired: {cidrs}", self.reason, time_of() - asked_at)
        self._held = replace(self._held, acquired_at=self._timer(), is_confirmed=False)
        asyncio.get_running_loop().call_later(self._held.told_by + 1, self._changed)  # to look whether it is there
        if request == self._wanted.request:
            self._hold(lease)
            if self._held.lost_unheld == lease.name:  # told on another stream, before this answer was
                self.hear_of_loss(lease.name)

    async def _back_off(self, since: float) -> None:
        """Waits until a pause after that moment has passed. A service that waits for what a lease needs is asked
        again at once.
        """
        await asyncio.sleep(max(0, since + self._pauses.next() - asyncio.get_running_loop().time()))

    async def _renew(self) -> None:
        assert self.lease is not None  # noqa: S101 - there is a time to renew only with a lease
        try:
            lease = await self._connection.renew(self.lease.name)
            log.info("lease renewed", lease=lease.name)
            self._note(f"own lease renewed: {lease.name}", "the renewal was due")
            # Else something else is to be published by now, or nothing, or the lease was lost.
            if self._wanted.request is not None and not self.reason:
                self._hold(lease)
        except NotFound as error:
            self.invalidate(str(error))
        except FlanneletteError as error:
            self._held, pause = self._held.not_renewed(str(error), self._timer())
            log.warning("the lease could not be renewed; trying again", reason=str(error), seconds=round(pause))
            self._note(f"own lease not renewed; trying again in {round(pause)} s", str(error))

    def _hold(self, lease: Lease) -> None:
        left = math.inf if lease.expires_at is None else lease.expires_at - self._clock()
        self._held = self._held.with_lease(lease, self._timer(), left, self._margin)
        self.previous_subnets = list(dict.fromkeys((*lease.cidrs, *self.previous_subnets)))[:_MOST_FORMER]
        self._changed()

    def _doubt(self, reason: str) -> None:
        if self._timer() - self._held.acquired_at >= _STEADY:
            self._pauses.reset()
        self._held = replace(self._held, reason=reason)
        self._wake.set()
        self._changed()

    def _report(self, reason: str) -> None:
        if reason != self.reason:
            log.warning("no lease", reason=reason)
            self._note("own lease refused; trying again", reason)
            self._held = replace(self._held, reason=reason)
            self._changed()

    def _lose_to_others(self, reason: str) -> None:
        if not self.reason:
            self._losses.note(reason)
            if contested_key := self.contested_key:
                log.warning("another program writes the key of this node", reason=contested_key.problem)
        self.invalidate(reason)

    def _note(self, what: str, cause: str, seconds: float = 0.0) -> None:
        self._journal.note(Event(NodeEventKind.OWN_LEASE, what, cause, seconds))

    async def _sleep(self, until: float | None) -> None:
        self._wake.clear()
        try:
            # The timer goes on while the machine is suspended, asyncio's does not: look at it at least every minute.
            async with asyncio.timeout(None if until is None else min(max(until - self._timer(), 0), 60)):
                await self._wake.wait()
        except TimeoutError:
            pass


def _says_the_same(seen: Lease, held: Lease) -> bool:
    """Whether both are one lease of one node with one content; times are the store's business."""
    return (seen.node, seen.subnets, seen.backend_type) == (held.node, held.subnets, held.backend_type)


def _with_previous(request: LeaseRequest, former: Sequence[Network], network: NetworkConfig | None) -> LeaseRequest:
    """Each part with the last subnet that the node had and that fits the network; where none does, as it was."""
    parts = []
    for part in request.parts:
        family = family_of(part.public_address)
        there = network.family(family) if network else None
        had = (cidr for cidr in former if cidr.version == family.version and (there is None or there.fits(cidr)))
        parts.append(replace(part, previous=next(had, part.previous)))
    return replace(request, parts=tuple(parts))
