"""The loop of the process: follows the leases, looks at the cloud, and carries out what the plan says.

That happens in batches as large as the provider takes, by threads; what fails may block the rest.
"""

import asyncio
import time
from collections import Counter as Counts
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import partial
from itertools import groupby
from pathlib import Path
from threading import Thread
from typing import Final, NamedTuple, TypeVar

from flannelette.services.cloud.routes import (
    Change,
    Cloud,
    CloudError,
    Failure,
    Key,
    Plan,
    Row,
    Verb,
    plan,
    problems_of,
    wanted_routes,
)
from flannelette.services.cloud.routes import Table as RoutingTable
from flannelette.services.core.backend_types import CLOUDS
from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import FlanneletteError, NotYet, Unavailable
from flannelette.services.core.family import IPV4
from flannelette.services.core.formats.text import count
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.events import Event, Journal, Subject
from flannelette.services.runtime.older_state import rows
from flannelette.services.runtime.state import Record, RecordFile, UnreadableState
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import Counter, Gauge

log = get_logger()

_Result = TypeVar("_Result")


async def in_thread(call: Callable[[], _Result]) -> _Result:
    """What the call returns or raises. One that hangs does not delay the end of the process, as to_thread's would."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[_Result] = loop.create_future()

    def run() -> None:
        try:
            settle = partial(result.set_result, call())
        except Exception as error:
            settle = partial(result.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(lambda: result.cancelled() or settle())

    Thread(target=run, daemon=True).start()
    return await result


_ERRORS = Counter("flannelette_cloud_errors", "Calls to the cloud that failed, by what follows", ["trouble"])


@dataclass
class BatchResult:
    """What was done; filled while it is."""

    made: list[Change] = field(default_factory=list)
    errors: dict[Key, str] = field(default_factory=dict)
    """Why the change of a route failed, by the route's key."""
    refusals: dict[Failure, str] = field(default_factory=dict)
    """What the provider said, by what follows."""
    wait: CloudError | None = None
    """Why nothing more can be done now."""


async def carry_out(cloud: Cloud, changes: Sequence[Change], done: BatchResult) -> None:
    """Each change, in this order. A batch that is refused as a whole is tried again one by one."""
    blocked: dict[tuple[Verb, str], str] = {}
    queue = deque(_batches(changes, cloud.batch))
    while queue and done.wait is None:
        some = queue.popleft()
        verb, table = some[0].verb, some[0].route.table
        if said := blocked.get((verb, table)):
            done.errors |= {change.route.key: said for change in some}
            continue
        try:
            failed = dict(await in_thread(partial(cloud.apply, some)))
        except CloudError as error:
            if len(some) > 1 and error.trouble not in (Failure.WAIT, Failure.DENIED):
                queue.extendleft([change] for change in reversed(some))
                continue
            failed = dict.fromkeys(some, error)
        if verb is Verb.DELETE:  # then another program was faster, and it is gone
            failed = {change: reason for change, reason in failed.items() if reason.trouble is not Failure.CHANGED}
        done.made += [change for change in some if change not in failed]
        for change, reason in failed.items():
            _ERRORS.labels(reason.trouble.name.lower()).inc()
            done.errors[change.route.key] = done.refusals[reason.trouble] = str(reason)
            if reason.trouble is Failure.WAIT:
                done.wait = reason
            elif reason.trouble in (Failure.FULL, Failure.DENIED) and verb is not Verb.FORWARD:
                blocked[verb, table] = str(reason)  # rights may be of one table, or one instance


def _batches(changes: Sequence[Change], most: int) -> Iterator[list[Change]]:
    """Changes of one verb in one table, at most so many."""
    for _, same in groupby(changes, lambda change: (change.verb, change.route.table)):
        found = list(same)
        for first in range(0, len(found), most):
            yield found[first : first + most]


class CloudEventKind(Enum):
    """The kind of an event of this service, as EventKind in cloud.proto, which says what each means."""

    SERVICE_STARTED = auto()
    READINESS = auto()
    ROUTE = auto()
    FINDING = auto()
    FAILURE = auto()
    SYNC = auto()
    TEARDOWN = auto()


_KIND: Final = "cloud.routes"


class OwnedRoutes:
    """Keeps in a file the keys of routes that are ours, because this program has seen them carry a lease.

    Without a `path` they are forgotten when the process ends.
    """

    def __init__(self, path: Path | None) -> None:
        self.file = RecordFile(path, _KIND, older=rows)
        self.keys = frozenset(_read(self.file))
        self._is_saved = self.file.is_whole

    def update(self, needed: Collection[Key], tables: Collection[RoutingTable]) -> None:
        """Adds those that leases need, also those about to be written; forgets those gone from their table."""
        there = {route.key for table in tables for route in table.routes}
        names = {table.name for table in tables}
        keys = frozenset(key for key in self.keys if key in there or key[0] not in names).union(needed)
        if keys == self.keys and self._is_saved:
            return
        self.keys = keys
        self._is_saved = self.file.write(Record.of_json("/".join(key), key) for key in sorted(keys))


def _read(file: RecordFile) -> Iterator[Key]:
    """The keys in the file; without those that cannot be read, so that nothing is deleted by mistake."""
    for record in file.read():
        try:
            table, destination, target = record.json()
            yield str(table), str(destination), str(target)
        except (UnreadableState, ValueError, TypeError) as error:
            file.reject(error)


MakeCloud = Callable[[NetworkConfig], Cloud]

_SETTLE_SECONDS: Final = 0.2
"""Seconds to wait for changes that come together, as when nodes start."""
_SHORTEST, _LONGEST = 1.0, 60.0
"""Pauses after a failure."""
_MOST_ROUNDS: Final = 5
"""Looks of one operator's call, while other programs change the table too."""

_ROUTES = Gauge("flannelette_cloud_routes", "Routes of nodes in the cloud's tables, by state", ["state"])
_CHANGES = Counter("flannelette_cloud_changes", "Changes made in the cloud's tables", ["verb"])
_LOOK = Gauge("flannelette_cloud_last_look_timestamp_seconds", "When the cloud's tables were last read")


class _Idle(NotYet):
    """The backend in force is not a cloud's."""


@frozen
class Round:
    """What the last look at the cloud has found, and what became of it."""

    plan: Plan = Plan((), ())
    errors: Mapping[Key, str] = field(default_factory=dict)
    """Why a change failed, by key of the route."""
    refusals: Mapping[Failure, str] = field(default_factory=dict)
    """What the provider said, by what follows."""
    made: Sequence[Change] = ()
    """The changes of the last look after which nothing had to wait."""

    @property
    def rows(self) -> list[Row]:
        """The routes with what was said of them, and of the instance that they lead to."""
        rows = []
        for row in self.plan.rows:
            key = row.route.key
            error = self.errors.get(key) or self.errors.get(("", *key[1:]))
            rows.append(replace(row, problem=error, is_planned=False) if error else row)
        return rows

    @property
    def failures(self) -> str:
        """How many changes failed, and why the first of them did; empty: none."""
        if not self.errors:
            return ""
        return f"{count(len(self.errors), 'change')} of the cloud's routes failed: {next(iter(self.errors.values()))}"

    def findings(self) -> list[Condition]:
        """What the operator should know."""
        told = [*self.plan.findings, *problems_of(self.rows)]
        if denied := self.refusals.get(Failure.DENIED):
            told.append(found("cloud.credentials", reason=denied))
        if (full := self.refusals.get(Failure.FULL)) and not self.plan.findings:
            told.append(found("cloud.limit-refused", reason=full))
        return told


class Pause(NamedTuple):
    """How long the next round waits."""

    seconds: float = 0.0
    """0: it waits for a change, or for the interval."""
    is_throttled: bool = False
    """A change of a lease does not shorten it."""


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
        """The configuration of the network that it was made for."""
        self._wake = asyncio.Event()
        self._one_at_a_time = asyncio.Lock()
        self._pauses = Backoff(_SHORTEST, _LONGEST)
        self._pause = Pause()
        self._problems: frozenset[str] = frozenset()
        self._failures: frozenset[str] = frozenset()
        self.backend = ""
        """The backend of the network, once there is one."""
        self.last = Round()
        self.looked_at = 0.0
        self.is_paused = False
        """The cloud's tables are left alone, because a teardown has removed the routes."""

    def notice(self) -> None:
        """The leases have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Rounds until cancelled: after each change of a lease, at an interval, and sooner after a failure."""
        while True:
            self._wake.clear()
            if not self.is_paused:
                await self._round()
            seconds, is_throttled = self._pause
            if is_throttled:
                await asyncio.sleep(seconds)
                continue
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds or self._interval):
                    await self._wake.wait()
                    await asyncio.sleep(_SHORTEST if seconds else _SETTLE_SECONDS)

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
                self.is_paused = remove
                await self._apply(cloud, found)
                if failures := self.last.failures:
                    self.notice()
                    raise Unavailable(failures)
                if not found.changes:
                    break
            self._health.set("cloud")
            self._count()
            kind = CloudEventKind.TEARDOWN if remove else CloudEventKind.SYNC
            what = "routes removed" if remove else "routes compared with the cloud"
            self._journal.note(Event(kind, what, "an operator", objects=len(commands)))
            self.notice()
            return commands

    async def _round(self) -> None:
        async with self._one_at_a_time:
            try:
                found, cloud = await self._look()
                await self._apply(cloud, found)
            except _Idle:
                self.last = Round()
                self._end_pauses()
                self._tell(self.last.plan)
            except NotYet as reason:
                self._health.set("leases", str(reason), outage=True)
                return
            except FlanneletteError as error:
                self._failed(error)
                return
            self._health.set("leases")
            self._health.set("cloud", self.last.failures, outage=True)
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
        self.last = replace(self.last, plan=found)
        self._tell(found)
        if remove:
            found = plan([], view, self.owned.keys, network.cidrs(IPV4))
        return found, self._cloud

    async def _apply(self, cloud: Cloud, found: Plan) -> None:
        """Each change. Raises CloudError if nothing more can be done now."""
        done, before = BatchResult(), self.last.made
        try:
            await carry_out(cloud, found.changes, done)
        finally:
            self.last = Round(found, done.errors, done.refusals, before)
            self._note(done.made)
        if done.wait is not None:
            raise done.wait
        self._complain(done.errors.values(), "routes could not be written")
        if done.errors or done.made == before != []:  # what does not last is not tried without a pause
            self._pause = Pause(self._pauses.next())
        else:
            self._end_pauses()
            if done.made:
                self.notice()  # what was written is looked at
        self.last = replace(self.last, made=done.made)

    def _note(self, made: list[Change]) -> None:
        for change in made:
            _CHANGES.labels(change.verb.name.lower()).inc()
            log.info("route changed", change=change.text)
            subject = Subject(str(change.route.destination), change.route.table)
            event = Event(CloudEventKind.ROUTE, change.text, subjects=(subject,), subject_count=1, objects=1)
            self._journal.note(event)

    def _failed(self, error: FlanneletteError) -> None:
        if isinstance(error, CloudError) and error.trouble is not Failure.WAIT:
            self._cloud = None  # credentials, region and metadata are read again
            self.last = replace(self.last, refusals={error.trouble: str(error)})
        self._pause = Pause(self._pauses.next(), is_throttled=True)
        self._health.set("leases")
        self._health.set("cloud", str(error), outage=True)
        self._complain([str(error)], "the cloud's routes cannot be kept")

    def _complain(self, reasons: Iterable[str], what: str) -> None:
        """Tells each reason once, until it is gone."""
        counts = Counts(reasons)
        for reason in counts.keys() - self._failures:
            log.error(what, reason=reason, calls=counts[reason])
            self._journal.note(Event(CloudEventKind.FAILURE, reason, objects=counts[reason]))
        self._failures = frozenset(counts)

    def _end_pauses(self) -> None:
        self._pause = Pause()
        self._pauses.reset()

    def _tell(self, found: Plan) -> None:
        problems = frozenset(
            f"{each.problem} {each.cause}".strip() for each in (*found.findings, *problems_of(found.rows))
        )
        for problem in sorted(problems - self._problems):
            log.warning("a problem of the cloud's routes", problem=problem)
            self._journal.note(Event(CloudEventKind.FINDING, problem))
        self._problems = problems

    def _count(self) -> None:
        states = ["failing" if row.problem else row.route.state for row in self.last.rows if row.node]
        for state in ("active", "pending", "missing", "failing"):
            _ROUTES.labels(state).set(states.count(state))
