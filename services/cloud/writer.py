"""The loop of the process: follows the leases, looks at the cloud, and carries out what the plan says."""

import asyncio
import json
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from services.cloud.journal import EventKind
from services.cloud.routes import (
    Change,
    Cloud,
    CloudError,
    Key,
    Plan,
    Row,
    Trouble,
    Verb,
    View,
    plan,
    wanted_routes,
)
from services.core.backend_options import CLOUDS
from services.core.errors import FlanneletteError, NotYet
from services.core.family import IPV4
from services.core.finding import Finding
from services.core.leases.table import Table
from services.core.network import NetworkConfig
from services.runtime.events.journal import Event, Journal, Subject
from services.runtime.os.atomic_file import replace_bytes
from services.runtime.telemetry.health import Health
from services.runtime.telemetry.logs import get_logger
from services.runtime.telemetry.metrics import Counter, Gauge

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
_ERRORS = Counter("flannelette_cloud_errors", "Calls to the cloud that failed, by what follows", ["trouble"])
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
        self._state = state
        self._seen = _read(state)
        self._cloud: Cloud | None = None
        self._source = ""
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._pause = 0.0
        self._reported: frozenset[str] = frozenset()
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
            if self._pause:  # a change of a lease does not shorten it
                await asyncio.sleep(self._pause)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._wake.wait()
                    await asyncio.sleep(_SETTLE_SECONDS)

    async def sync(self, *, dry_run: bool, remove: bool = False) -> list[str]:
        """Carries the plan out now, or only returns it: the provider's commands. Raises NotYet, CloudError.

        `remove`: of all routes that are ours; then the writer is paused, until the next `sync` without it.
        """
        async with self._one_at_a_time:
            self.is_paused = remove if not dry_run else self.is_paused
            commands: list[str] = []
            for _ in range(_MOST_ROUNDS):
                found, cloud = await self._look(remove=remove)
                commands += [cloud.command(change) for change in found.changes]
                if dry_run or not found.changes:
                    break
                await self._apply(cloud, found)
                if self.errors:
                    break
            if not dry_run:
                kind = EventKind.TEARDOWN if remove else EventKind.SYNC
                what = "routes removed" if remove else "routes compared with the cloud"
                self._journal.note(Event(kind, what, "an operator", objects=len(commands)))
                self.notice()
            return commands

    def findings(self) -> list[Finding]:
        """What the operator should know, of the last look."""
        rows = [row for row in self.rows() if row.problem and not row.is_planned]
        return [
            *self.plan.findings,
            *(
                Finding(
                    "cloud-route", f"{r.route.destination} in {r.route.table}: {r.problem}", is_broken=bool(r.node)
                )
                for r in rows
            ),
        ]

    def rows(self) -> list[Row]:
        """The routes with what the last round said of them."""
        return [
            Row(row.route, row.node, self.errors.get(row.route.key, row.problem), row.is_planned)
            for row in self.plan.rows
        ]

    async def _round(self) -> None:
        async with self._one_at_a_time:
            try:
                found, cloud = await self._look()
                await self._apply(cloud, found)
            except _Idle:
                self.plan, self.errors, self._pause = _NOTHING, {}, 0.0
            except NotYet as reason:
                self._health.set("leases", str(reason), outage=True)
                return
            except FlanneletteError as error:
                self._failed(error)
                return
            self._health.set("leases")
            first = next(iter(self.errors.values()), "")
            self._health.set("cloud", f"{len(self.errors)} changes failed: {first}" if first else "", outage=True)

    async def _look(self, *, remove: bool = False) -> tuple[Plan, Cloud]:
        table, away = self._table()
        network = table.network
        if network is None or not table.is_complete or away:
            why = away or table.network_error or "it has not sent all leases yet"
            raise NotYet(f"no route is changed without the current leases: {why}")
        self.backend = network.backend_type
        if self.backend not in CLOUDS:
            raise _Idle(f"backend {self.backend} has no routes in a cloud: there is nothing to do")
        if self._cloud is None or self._source != network.source:
            self._cloud = await asyncio.to_thread(self._make, network)
            self._source = network.source
        wanted = wanted_routes(network, table.leases.values())
        view = await asyncio.to_thread(self._cloud.look, {each.address for each in wanted if each.address})
        self.looked_at = time.time()
        _LOOK.set(self.looked_at)
        found = plan([] if remove else wanted, view, self._seen, network.cidrs(IPV4))
        self._remember(found, view)
        self.plan = found
        self._tell(found)
        return found, self._cloud

    async def _apply(self, cloud: Cloud, found: Plan) -> None:
        """Each change. Raises CloudError if nothing more can be done now."""
        errors: dict[Key, str] = {}
        self.errors = errors
        blocked: dict[tuple[Verb, str], str] = {}
        made: list[Change] = []
        try:
            for change in found.changes:
                route, verb = change.route, change.verb
                if reason := blocked.get((verb, "")) or blocked.get((verb, route.table)):
                    errors[route.key] = reason
                    continue
                try:
                    await asyncio.to_thread(cloud.apply, change)
                except CloudError as error:
                    _ERRORS.labels(error.trouble.name.lower()).inc()
                    errors[route.key] = str(error)
                    if error.trouble is Trouble.WAIT:
                        raise
                    if error.trouble in (Trouble.FULL, Trouble.DENIED):
                        blocked[verb, route.table if error.trouble is Trouble.FULL else ""] = str(error)
                else:
                    made.append(change)
        finally:
            self._note(made)
        for (_, destination, _), reason in errors.items():
            log.error("a route could not be written", destination=destination, reason=reason)
        if errors or made == self._made != []:  # what does not last is not tried without a pause
            self._back_off()
        else:
            self._pause = 0.0
            if made:
                self.notice()  # what was written is looked at
        self._made = made

    def _note(self, made: list[Change]) -> None:
        for change in made:
            _CHANGES.labels(change.verb.name.lower()).inc()
            log.info("route changed", change=change.text)
            subject = Subject(str(change.route.destination), change.route.table)
            event = Event(EventKind.ROUTE, change.text, subjects=(subject,), subject_count=1, objects=1)
            self._journal.note(event)

    def _remember(self, found: Plan, view: View) -> None:
        """Which routes are ours: those that leases need, also those about to be written, and those of before."""
        there = {route.key for table in view.tables for route in table.routes}
        seen = self._seen & there | found.desired()
        if seen == self._seen:
            return
        self._seen = seen
        if self._state is not None:
            try:
                replace_bytes(self._state, [json.dumps(sorted(seen)).encode()], 0o600)
            except OSError as error:
                log.warning("cannot remember which routes are ours", path=str(self._state), reason=error.strerror)

    def _failed(self, error: FlanneletteError) -> None:
        if isinstance(error, CloudError) and error.trouble is not Trouble.WAIT:
            self._cloud = None  # credentials, region and metadata are read again
        self._back_off()
        reason = str(error)
        self._health.set("leases")
        self._health.set("cloud", reason, outage=True)
        if {reason} != self._reported:
            log.error("the cloud's routes cannot be kept", reason=reason)
            self._journal.note(Event(EventKind.FAILURE, reason))
            self._reported = frozenset({reason})

    def _back_off(self) -> None:
        longest = min(2 * self._pause, _LONGEST) if self._pause else _SHORTEST
        self._pause = max(random.uniform(longest / 2, longest), _SHORTEST / 2)  # noqa: S311 - jitter

    def _tell(self, found: Plan) -> None:
        problems = frozenset(each.problem for each in found.findings) | frozenset(
            f"{row.route.destination} in {row.route.table}: {row.problem}"
            for row in found.rows
            if row.problem and not row.is_planned
        )
        for problem in sorted(problems - self._reported):
            log.warning("a problem of the cloud's routes", problem=problem)
            self._journal.note(Event(EventKind.FINDING, problem))
        self._reported = problems
        states = [row.route.state if not row.problem else "failing" for row in found.rows if row.node]
        for state in ("active", "pending", "missing", "failing"):
            _ROUTES.labels(state).set(states.count(state))


def _read(path: Path | None) -> frozenset[Key]:
    """The keys of routes in the file; none if it cannot be read, so that nothing is deleted by mistake."""
    try:
        rows = json.loads(path.read_text()) if path else []
        return frozenset((str(table), str(destination), str(target)) for table, destination, target in rows)
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, TypeError) as error:
        log.error("the file of our routes is not used", path=str(path), reason=str(error))
        return frozenset()
