"""The dataplane's control loop: events only wake it, and each iteration reconciles the kernel with the leases.

How far the kernel is then is told to the lease service: ReportProgress.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.conditions import Condition
from flannelette.services.core.errors import FlanneletteError, NotImplementedYet, Unavailable
from flannelette.services.core.family import Family
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import FailedLease, Progress
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.backends.backend import Backends
from flannelette.services.dataplane.diagnose.seen import KnownPods
from flannelette.services.dataplane.events import Event, NodeEventKind, NodeJournal, Observations
from flannelette.services.dataplane.kernel.programmer import PeerProgrammer
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.node.config_tracker import ConfigTracker, NetworkChange
from flannelette.services.dataplane.node.lease_renewer import LeaseRenewer
from flannelette.services.dataplane.node.node_lease import NodeLease
from flannelette.services.dataplane.node.overlay_config import OverlayConfig
from flannelette.services.dataplane.node.path_mtus import PathMtuFile
from flannelette.services.dataplane.node.subnet_file import read_previous_subnets
from flannelette.services.dataplane.peers import PeerContext
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.runtime.backoff import Backoff, jittered
from flannelette.services.runtime.cache import PATIENCE, CachedTable, CacheWriter, StateFile
from flannelette.services.runtime.lease.feed import Connection, Feed
from flannelette.services.runtime.process.exclusive import Exclusive
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger

log = get_logger()

_RETRY_SECONDS = 1.0
_RETRY_FAILED_SECONDS = 5.0
_FAILED: Final = "the kernel could not be reconciled; retrying"


@frozen
class Desired:
    """What one turn holds the kernel to: the leases in force, and the configuration by which nodes are reached."""

    table: Table
    network: NetworkConfig
    """The configuration of the table, unless this node keeps another one (see NetworkChange)."""
    config: OverlayConfig
    """What was made of `network`, or of the last one that could be applied."""
    is_told: bool
    """The leases are those of the lease service, not cached ones."""
    is_current: bool
    """Lease service and store answer."""


@frozen
class TurnStatus:
    """What the turns have come to so far."""

    error: str = ""
    """Why the last one failed; empty: it succeeded."""
    cursor: str = ""
    """Cursor of the leases that are in the kernel; empty: none are there yet."""
    progress: Progress | None = None
    """What the lease service is told; None until we have been ready for the first time."""
    is_ready: bool = False
    reasons: tuple[str, ...] = ()
    """Why the node is not ready."""

    def events_since(self, former: "TurnStatus") -> Iterator[Event]:
        """What has to be told of the difference: another failure, and whether the node is ready."""
        if self.error and self.error != former.error:
            yield Event(NodeEventKind.FAILURE, _FAILED, self.error)
        if self.is_ready != former.is_ready:
            yield Event(NodeEventKind.READINESS, "ready" if self.is_ready else "not ready", "; ".join(self.reasons))


class Controller:
    """Holds the kernel to the lease table. Its attributes are what the status calls show."""

    def __init__(
        self,
        settings: DataplaneSettings,
        connection: Connection,
        kernel: Actuator,
        backends: Backends,
        health: Health,
        state: StateFile,
        clock: Callable[[], float] = time.time,
        journal: NodeJournal | None = None,
        path_mtu_file: PathMtuFile | None = None,
    ) -> None:
        self.settings = settings
        self.node = connection.node
        self.journal = journal or NodeJournal()
        started = f"flannelette-dataplane {version()} of {self.node} started"
        self.journal.note(Event(NodeEventKind.SERVICE_STARTED, started))
        self.cached_table = CachedTable(connection.node, state)
        self.cache_writer = CacheWriter(connection.node, state)
        former = (*read_previous_subnets(settings.subnet_file), *self.cached_table.previous_subnets)
        self.feed = Feed(connection, pb.VIEW_ALL, self._notice, most=settings.max_leases)
        margin = settings.subnet_lease_renew_margin * 60
        self.renewer = LeaseRenewer(connection, margin, self.wake_up, self.journal, clock, former=former)
        self.reporter = Reporter(connection)
        self.programmer = PeerProgrammer(connection.node, kernel, self.journal)
        self.status = TurnStatus()
        self.iterations = 0
        """How many have ended."""
        self.changed = asyncio.Condition()
        """Notified after every iteration."""
        self.lock = Exclusive()
        """Held while the kernel is compared or changed."""
        self.findings: tuple[Condition, ...] = ()
        """What other programs have done on this host that keeps packets from peers or pods."""
        self.detours: Mapping[str, Condition] = {}
        """Findings by lease name, reported if the peer is silent: packets to it do not leave by the underlay."""
        self.known_pods = KnownPods()
        self.suspicious = asyncio.Event()
        """Set when `findings` may have changed."""
        self.is_paused = False
        """Whether the kernel is left alone."""
        self.health = health
        self.own = NodeLease(self.node, settings, self.renewer, health, self.journal, self.cached_table.own, clock)
        before = (former, self.cached_table.networks)
        self.tracker = ConfigTracker(
            settings, self.node, kernel, backends, self.journal, *before, machine=connection.machine
        )
        self.change = NetworkChange(
            connection.node, connection, kernel, self.journal, settings.route_protocol, self.cached_table.network
        )
        self.path_mtu_file = path_mtu_file or PathMtuFile(None)
        self._take_kept_paths()
        self.table: Table | None = None
        """The leases in force: the last complete snapshot, or the cached table; None: none yet."""
        self._limits = settings.limits()
        self._patient_until = 0.0
        """The loop's time until which a lease service may begin a snapshot before the cached table is used."""
        self._touched: dict[str, float] = {}
        """Leases that have changed since they were programmed, in that order, with when, on the monotonic clock."""
        self._due: Observations | None = Observations()
        """What others did to the kernel since everything was compared; None: there is no need to compare it again."""
        self._was_connected = False
        self._may_log = LogLimiter()
        self._looked_at = 0.0
        """When everything was last compared, or that was last tried; the loop's time."""
        self._wake = asyncio.Event()
        health.set("snapshot", "the first complete snapshot of leases is not programmed yet")

    async def run(self) -> None:
        """Runs the control loop until cancelled. Raises Misconfigured when this node cannot carry the
        overlay at all.
        """
        self._patient_until = asyncio.get_running_loop().time() + PATIENCE
        asyncio.get_running_loop().call_at(self._patient_until, self._wake.set)
        while True:
            async with self.lock:
                try:
                    await self.reconcile_once()
                    self._end_turn("")
                except Unavailable as error:
                    self._end_turn(str(error))
            async with self.changed:
                self.changed.notify_all()
            await self._wait(self._looked_at + self._pause())

    async def iteration_after(self, seen: int) -> None:
        """Returns when `iterations` is another number than this one."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.iterations != seen)

    def audit(self, observed: Observations | None = None) -> None:
        """Has everything compared at once; what was `observed` in the kernel says why."""
        self._make_due(observed)
        self._wake.set()

    def pause(self, reason: str) -> None:
        """Leaves the kernel alone from now on, and a lease that is taken away or given back."""
        self.is_paused = True
        self.renewer.pause()
        self.health.set("snapshot")
        self.health.set("kernel", reason)

    def resume(self) -> None:
        """Ends a pause, and compares everything."""
        self.is_paused = False
        self.audit(Observations(is_requested=True))

    def note_path(self, lease: str, family: Family, largest: int, *, is_final: bool) -> None:
        """Takes what probes say of the path to a peer: the largest packet that passes; 0: all do that should.

        Not `is_final`: larger ones may pass too, as the search goes on.
        """
        if self.settings.path_mtu == "off":
            return
        peers = self.programmer.peer_set
        if peers.limit(lease, family.version, largest):
            self.path_mtu_file.write(peers.path_mtus)
            self._touched.setdefault(lease, time.monotonic())
            self._wake.set()
        if self.settings.path_mtu == "all" and is_final and self.own.follow_paths(peers.path_mtus):
            self.audit()

    def wake_up(self) -> None:
        """Starts an iteration now."""
        self._wake.set()

    @property
    def cached_reason(self) -> str:
        """Why the node is not ready while cached leases are in force."""
        return f"the leases are those of {self.cached_table.since}"

    def tell(self, progress: Progress | None) -> None:
        """Reports the progress of this node to the lease service."""
        self.status = replace(self.status, progress=progress)
        self.reporter.tell(progress, self.feed.streams if self.feed.connected else 0)

    def _take_kept_paths(self) -> None:
        """Takes the MTUs that an earlier process has given to routes: of now, or to be taken back."""
        kept = self.path_mtu_file.read()
        self.programmer.reconciler.kept_mtus = frozenset(kept.values())
        if self.settings.path_mtu != "off":
            self.programmer.peer_set.path_mtus.update(kept)
        if self.settings.path_mtu == "all":
            self.own.follow_paths(kept)

    def _notice(self, touched: frozenset[str]) -> None:
        if touched:
            now = time.monotonic()
            for name in touched:
                self._touched.setdefault(name, now)
        if self.feed.connected != self._was_connected:
            self._was_connected = self.feed.connected
            what = "connected" if self.feed.connected else "away; the last leases stay in force"
            self.journal.note(Event(NodeEventKind.LEASE_SERVICE, f"the lease service is {what}", self.feed.error))
        if self.feed.table.lost:
            self.renewer.hear_of_loss(self.feed.table.lost)
        self._wake.set()

    def _pause(self) -> float:
        if self.status.error:
            return _RETRY_SECONDS
        is_short = self.tracker.error or self.programmer.reconciler.failures or self.tracker.earlier.is_waiting
        return min(self.settings.audit_interval, _RETRY_FAILED_SECONDS if is_short else float("inf"))

    async def _wait(self, deadline: float) -> None:
        """Waits until the loop is woken, or the audit is due, which makes a full comparison due."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError:
            self._make_due()
        self._wake.clear()

    def _make_due(self, observed: Observations | None = None) -> None:
        """Has the next turn compare everything."""
        self._due = (self._due or Observations()) + (observed or Observations())

    async def reconcile_once(self) -> None:
        """One iteration, as far as what is known allows. Raises Unavailable: the kernel does not answer."""
        if self._due is not None:
            self._looked_at = asyncio.get_running_loop().time()
        told = self.feed.table
        store_error = "" if told.store is None or self.feed.error else told.store.error
        self.health.set("lease service", self.feed.error, outage=True)
        self.health.set("store", store_error, outage=True)
        if self.is_paused:
            self.renewer.observe(told)
            if self._due is not None:
                with suppress(Unavailable):
                    await self.programmer.observe()
                self._due = None
            return
        desired = await self._desired(told, is_current=not (self.feed.error or store_error))
        if desired is not None:
            await self._apply(desired)

    async def _desired(self, told: Table, *, is_current: bool) -> Desired | None:
        """What the kernel has to be held to; None: that is not known yet."""
        table = self._choose_table(is_away=not is_current or bool(told.network_error))
        if table is None or table.network is None:
            reason = told.network_error or "waiting for the first complete snapshot of leases"
            self.health.set("leases", "" if self.feed.error else reason)
            return None
        is_told = table is told
        self.health.set("leases", "" if is_told else self.cached_reason)
        self.journal.cursor = table.cursor
        network = await self.change.network(table, self.renewer.lease, is_told=is_told)
        chosen = table.overrides.get(self.node, ())
        if await self.tracker.update(network, chosen, self.own.published(table), look=self._due is not None):
            self._make_due()
            self.health.set("kernel", "a new network configuration or underlay is not programmed yet")
        self.health.set("network", self.tracker.error)
        config = self.tracker.config
        return Desired(table, network, config, is_told, is_current) if config is not None else None

    async def _apply(self, desired: Desired) -> None:
        config, table = desired.config, desired.table
        if desired.is_told and self.feed.connected:
            self.renewer.observe(table)
        if self._due is not None or not self.own.is_settled:
            observed = await self.own.apply(config, self.tracker, table, self._due or Observations())
            if self._due is not None or observed.counts:
                self._make_due(observed)
        await self._program(desired)
        self.own.publish(config, self.tracker, table, is_programmed=True)
        if self.tracker.default_route_moved(self.programmer.reconciler.defaults):
            self.audit()
        if desired.is_told:
            if not self.renewer.reason and self.tracker.retire(self.programmer.unused_overlays()):
                self.audit()
            else:
                await self.tracker.remove_stale()
            own, previous = self.own.confirmed_by(table), self.renewer.previous_subnets
            networks = (desired.network, *self.tracker.earlier.networks)
            self.cache_writer.update(table, own, previous, is_current=desired.is_current, networks=networks)
        # It may have come while the kernel was programmed.
        state = self.own.refusal if self.own.is_settled else "the own subnet is being set up"
        self.health.set("own lease", self.own.reason or state)
        self.health.set("snapshot")
        self.health.set("kernel", self.programmer.node_failure)
        cursor, progress = table.cursor or self.status.cursor, self.status.progress
        if cursor and (self.health.ready or progress is not None):
            progress = progress_after(progress, self.node, cursor, self.programmer.failed, time.monotonic())
        self.status = replace(self.status, cursor=cursor, progress=progress)

    def _choose_table(self, *, is_away: bool) -> Table | None:
        is_away = is_away and asyncio.get_running_loop().time() >= self._patient_until
        table = self.cached_table.choose(self.feed.table, is_away=is_away)
        if table is not self.table:
            self.table = table
            self._make_due()
            is_cached = table is not None and table is self.cached_table.table
            self.own.use_cached(self.cached_table.confirmed_at if is_cached else None)
            if is_cached:
                what = "the cached leases are in force"
                self.journal.note(Event(NodeEventKind.LEASE_SERVICE, what, self.cached_reason))
        return table

    async def _program(self, desired: Desired) -> None:
        config, table = desired.config, desired.table
        if self._due is not None:
            await self.tracker.read_connected_routes()
        own = self.own.subnets(table)
        if config.backend.needs_own_subnet and not own:
            return
        links, works = self.tracker.links(config), self.tracker.is_working(config)
        where = (config.network, config.backend, links, own, self._limits, self.settings.ip_blackhole_route)
        change = tuple(self.tracker.earlier_overlays()), self.tracker.connected_by_tasks
        last = self.programmer.context
        context = PeerContext(*where, not desired.is_told, works, *change).after(last)
        if last is not None and context == last:
            context = last  # which knows already what follows from it
        touched, self._touched = self._touched, {}
        since = next(iter(touched.values()), None)
        if self._due is None and context is last:
            if desired.is_told and touched:
                await self.programmer.program(context, table.leases, touched.keys(), since=since)
            return
        observed, self._due = self._due or Observations(), None
        try:
            await self.programmer.program(context, table.leases, observed=observed, since=since)
        except Unavailable:
            self._make_due(observed)
            raise
        self.suspicious.set()

    def _end_turn(self, error: str) -> None:
        former = self.status
        if error:
            if error != former.error and self._may_log(error):
                log.warning(_FAILED, reason=error)
            self._make_due()
            self.health.set("kernel", error)
        self.status = replace(former, error=error, is_ready=self.health.ready, reasons=tuple(self.health.reasons))
        for event in self.status.events_since(former):
            self.journal.note(event)
        self.iterations += 1
        self.tell(self.status.progress)


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
        self._now: tuple[int, Progress] | None = None
        """How far the node is, and on which stream that is to be told."""
        self._told: tuple[int, Progress] | None = None
        self._deaf = 0
        """The stream whose service does not take reports."""
        self._trouble = ""
        self._wake = asyncio.Event()

    def tell(self, progress: Progress | None, stream: int) -> None:
        """What is true now; None: nothing yet. `stream` numbers the streams of leases, 0 while none is open.

        What is wrong is looked up when it is reported, not at each of many changes.
        """
        self._now = (stream, progress) if progress is not None and stream else None
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
        while True:
            self._wake.clear()
            if self._now is not None and self._now[0] != self._deaf:
                stream, progress = self._now
                news = stream, replace(progress, findings=self.findings(), version=version())
                if news != self._told:
                    return news
            await self._wake.wait()

    def _complain(self, reason: str) -> None:
        if reason != self._trouble:
            log.warning("progress could not be reported; trying again", reason=reason)
            self._trouble = reason
