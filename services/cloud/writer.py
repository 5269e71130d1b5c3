"""The loop of the process: follows the leases, looks at the cloud, and carries out what the plan says."""

import asyncio
import time
from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from flannelette.services.cloud.batches import Outcome, carry_out
from flannelette.services.cloud.journal import EventKind
from flannelette.services.cloud.owned_routes import OwnedRoutes
from flannelette.services.cloud.routes import (
    Change,
    Cloud,
    CloudError,
    Key,
    Plan,
    Row,
    Trouble,
    plan,
    problems_of,
    wanted_routes,
)
from flannelette.services.cloud.threads import in_thread
from flannelette.services.core.backend_options import CLOUDS
from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import FlanneletteError, NotYet, Unavailable
from flannelette.services.core.family import IPV4
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.events import Event, Journal, Subject
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import Counter, Gauge

log = get_logger()

MakeCloud = Callable[[NetworkConfig], Cloud]

_SETTLE_SECONDS: Final = 0.2
"""For changes that come together, as when nodes start."""
_SHORTEST, _LONGEST = 1.0, 60.0
"""Pauses after a failure."""
_MOST_ROUNDS: Final = 5
"""Looks of one operator's call, while other programs change the table too."""

_ROUTES = Gauge("flannelette_cloud_routes", "Routes of nodes in the cloud's tables, by state", ["state"])
_CHANGES = Counter("flannelette_cloud_changes", "Changes made in the cloud's tables", ["verb"])
_LOOK = Gauge("flannelette_cloud_last_look_timestamp_seconds", "When the cloud's tables were last read")
_NOTHING: Final = Plan((), ())


class _Idle(NotYet):
    """The backend in force is not a cloud's."""


class Writer:
    """Keeps the cloud's tables as the leases want them.

    Guarantees: nothing is changed while the lease service is away or its table is incomplete, so that of two writers
    the one with older leases is silent; a failure of one route does not stop the others; stopping leaves all routes.
    """

    def __init__(
        self, table: Callable[[], tuple[Table, str]], make: MakeCloud, health: Health, journal: Journal,
        *, interval: float, state: Path | None,
    ) -> None:  # fmt: skip
        """`table` returns the leases, and why they are not current; `make` may raise InvalidInput and CloudError."""
        self._table = table
        self._make = make
        self._health = health
        self._journal = journal
        self._interval = interval
        self.owned = OwnedRoutes(state)
        self._cloud: Cloud | None = None
        self._source = ""
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._pauses = Backoff(_SHORTEST, _LONGEST)
        self._pause = 0.0
        self._is_throttled = False
        self._problems: frozenset[str] = frozenset()
        self._failures: frozenset[str] = frozenset()
        self._refusals: Mapping[Trouble, str] = {}
        self._made: list[Change] = []
        self.backend = ""
        """The backend of the network, once there is one."""
        self.plan = _NOTHING
        """The last one."""
        self.errors: Mapping[Key, str] = {}
        """Of the last round, by key of the route."""
        self.looked_at = 0.0
        self.is_paused = False
        """After a teardown."""

    def notice(self) -> None:
        """The leases have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Rounds until cancelled: after each change of a lease, at an interval, and sooner after a failure."""
        while True:
            self._wake.clear()
            if not self.is_paused:
                await self._round()
            if self._is_throttled:  # a change of a lease does not shorten the pause
                await asyncio.sleep(self._pause)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause or self._interval):
                    await self._wake.wait()
                    await asyncio.sleep(_SHORTEST if self._pause else _SETTLE_SECONDS)

    async def sync(self, *, dry_run: bool, remove: bool = False) -> list[str]:
        """Carries the plan out now, or only returns it: the provider's commands. Raises NotYet, Unavailable.

        `remove`: of all routes that are ours; then the writer is paused, until the next `sync` without it.
        """
        async with self._one_at_a_time:
            commands: list[str] = []
            for _ in range(_MOST_ROUNDS):
                found, cloud = await self._look(remove=remove)
                commands += [cloud.command(change) for change in found.changes]
                if dry_run:
                    return commands
                self.is_paused, self.plan = remove, found
                await self._apply(cloud, found)
                if self.errors:
                    self.notice()
                    raise Unavailable(_failed_changes(self.errors))
                if not found.changes:
                    break
            self._health.set("cloud")
            self._count()
            kind = EventKind.TEARDOWN if remove else EventKind.SYNC
            what = "routes removed" if remove else "routes compared with the cloud"
            self._journal.note(Event(kind, what, "an operator", objects=len(commands)))
            self.notice()
            return commands

    def findings(self) -> list[Condition]:
        """What the operator should know, of the last look."""
        told = [*self.plan.findings, *problems_of(self.rows())]
        if denied := self._refusals.get(Trouble.DENIED):
            told.append(found("cloud.credentials", reason=denied))
        if (full := self._refusals.get(Trouble.FULL)) and not self.plan.findings:
            told.append(found("cloud.limit-refused", reason=full))
        return told

    def rows(self) -> list[Row]:
        """The routes with what the last round said of them, and of the instance that they lead to."""
        rows = []
        for row in self.plan.rows:
            key = row.route.key
            error = self.errors.get(key) or self.errors.get(("", *key[1:]))
            rows.append(replace(row, problem=error, is_planned=False) if error else row)
        return rows

    async def _round(self) -> None:
        async with self._one_at_a_time:
            try:
                found, cloud = await self._look()
                await self._apply(cloud, found)
            except _Idle:
                self.plan, self.errors, self._refusals = _NOTHING, {}, {}
                self._end_pauses()
                self._is_throttled = False
                self._tell(_NOTHING)
            except NotYet as reason:
                self._health.set("leases", str(reason), outage=True)
                return
            except FlanneletteError as error:
                self._failed(error)
                return
            self._health.set("leases")
            self._health.set("cloud", _failed_changes(self.errors) if self.errors else "", outage=True)
            self._count()

    async def _look(self, *, remove: bool = False) -> tuple[Plan, Cloud]:
        table, away = self._table()
        network = table.network
        if network is None or not table.is_complete or away:
            why = away or table.network_error or "it has not sent all leases yet"
            raise NotYet(f"no route is changed without the current leases: {why}")
        self.backend = network.backend_type
        if self.backend in CLOUDS:
            if self._source != network.source:
                self._source, self._cloud = network.source, None
                for warning in network.warnings:
                    log.warning("a problem of the network configuration", problem=warning)
            if self._cloud is None:
                self._cloud = await in_thread(partial(self._make, network))
        elif self._cloud is None or not remove:  # else what the former backend has left
            raise _Idle(f"backend {self.backend} has no routes in a cloud: there is nothing to do")
        wanted = wanted_routes(network, table.leases.values())
        addresses = {each.address for each in wanted if each.address}
        view = await in_thread(partial(self._cloud.look, addresses))
        self.looked_at = time.time()
        _LOOK.set(self.looked_at)
        found = plan(wanted, view, self.owned.keys, network.cidrs(IPV4))
        self.owned.update(found.desired(), view.tables)
        self.plan = found
        self._tell(found)
        if remove:
            found = plan([], view, self.owned.keys, network.cidrs(IPV4))
        return found, self._cloud

    async def _apply(self, cloud: Cloud, found: Plan) -> None:
        """Each change. Raises CloudError if nothing more can be done now."""
        done = Outcome()
        self.errors, self._refusals = done.errors, done.refusals
        try:
            await carry_out(cloud, found.changes, done)
        finally:
            self._note(done.made)
        if done.wait is not None:
            raise done.wait
        self._is_throttled = False
        self._complain(done.errors.values(), "routes could not be written")
        if done.errors or done.made == self._made != []:  # what does not last is not tried without a pause
            self._pause = self._pauses.next()
        else:
            self._end_pauses()
            if done.made:
                self.notice()  # what was written is looked at
        self._made = done.made

    def _note(self, made: list[Change]) -> None:
        for change in made:
            _CHANGES.labels(change.verb.name.lower()).inc()
            log.info("route changed", change=change.text)
            subject = Subject(str(change.route.destination), change.route.table)
            event = Event(EventKind.ROUTE, change.text, subjects=(subject,), subject_count=1, objects=1)
            self._journal.note(event)

    def _failed(self, error: FlanneletteError) -> None:
        if isinstance(error, CloudError) and error.trouble is not Trouble.WAIT:
            self._cloud = None  # credentials, region and metadata are read again
            self._refusals = {error.trouble: str(error)}
        self._pause, self._is_throttled = self._pauses.next(), True
        self._health.set("leases")
        self._health.set("cloud", str(error), outage=True)
        self._complain([str(error)], "the cloud's routes cannot be kept")

    def _complain(self, reasons: Iterable[str], what: str) -> None:
        """Tells each reason once, until it is gone."""
        counts = Counts(reasons)
        for reason in counts.keys() - self._failures:
            log.error(what, reason=reason, calls=counts[reason])
            self._journal.note(Event(EventKind.FAILURE, reason, objects=counts[reason]))
        self._failures = frozenset(counts)

    def _end_pauses(self) -> None:
        self._pause = 0.0
        self._pauses.reset()

    def _tell(self, found: Plan) -> None:
        problems = frozenset(
            f"{each.problem} {each.cause}".strip() for each in (*found.findings, *problems_of(found.rows))
        )
        for problem in sorted(problems - self._problems):
            log.warning("a problem of the cloud's routes", problem=problem)
            self._journal.note(Event(EventKind.FINDING, problem))
        self._problems = problems

    def _count(self) -> None:
        states = ["failing" if row.problem else row.route.state for row in self.rows() if row.node]
        for state in ("active", "pending", "missing", "failing"):
            _ROUTES.labels(state).set(states.count(state))


def _failed_changes(errors: Mapping[Key, str]) -> str:
    """How many changes failed, and why the first of them did."""
    changes = "1 change" if len(errors) == 1 else f"{len(errors)} changes"
    return f"{changes} of the cloud's routes failed: {next(iter(errors.values()))}"
