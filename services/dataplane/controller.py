"""The dataplane's control loop: events only wake it, and each iteration reconciles the kernel with the leases."""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.conditions import Condition
from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.progress import Progress
from flannelette.services.core.leases.table import Table
from flannelette.services.dataplane.backends.backend import Backends
from flannelette.services.dataplane.diagnose.seen import KnownPods
from flannelette.services.dataplane.events.causes import Observations
from flannelette.services.dataplane.events.journal import Event, EventKind, Journal
from flannelette.services.dataplane.kernel.programmer import PeerProgrammer
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.node.config_tracker import ConfigTracker
from flannelette.services.dataplane.node.lease_renewer import LeaseRenewer
from flannelette.services.dataplane.node.network_change import NetworkChange
from flannelette.services.dataplane.node.node_lease import NodeLease
from flannelette.services.dataplane.node.overlay_config import OverlayConfig
from flannelette.services.dataplane.node.progress_reporter import Reporter, progress_after
from flannelette.services.dataplane.node.subnet_file import read_previous_subnets
from flannelette.services.dataplane.peers.peer import PeerContext
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.runtime.cache.node_state import PATIENCE, CachedTable, CacheWriter, StateFile
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.process.exclusive import Exclusive
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger

log = get_logger()

_RETRY_SECONDS = 1.0
_RETRY_FAILED_SECONDS = 5.0


class Controller:
    """Holds the kernel to the lease table. Its attributes are what the status calls show."""

    def __init__(
        self,
        settings: DataplaneSettings,
        connection: LeaseConnection,
        kernel: Actuator,
        backends: Backends,
        health: Health,
        state: StateFile,
        clock: Callable[[], float] = time.time,
        journal: Journal | None = None,
    ) -> None:
        self.settings = settings
        self.node = connection.node
        self.journal = journal or Journal()
        started = f"flannelette-dataplane {version()} of {self.node} started"
        self.journal.note(Event(EventKind.SERVICE_STARTED, started))
        self.cached_table = CachedTable(connection.node, state)
        self.cache_writer = CacheWriter(connection.node, state)
        former = (*read_previous_subnets(settings.subnet_file), *self.cached_table.previous_subnets)
        self.feed = Feed(connection, pb.VIEW_ALL, self._notice, most=settings.max_leases)
        margin = settings.subnet_lease_renew_margin * 60
        self.renewer = LeaseRenewer(connection, margin, self.wake_up, self.journal, clock, former=former)
        self.reporter = Reporter(connection)
        self.programmer = PeerProgrammer(connection.node, kernel, self.journal)
        self.cursor = ""
        """Of the leases that are in the kernel."""
        self.iterations = 0
        """How many have ended."""
        self.changed = asyncio.Condition()
        """Notified after every iteration."""
        self.lock = Exclusive()
        """Held while the kernel is compared or changed."""
        self.error = ""
        """Why the last iteration failed; empty: it succeeded."""
        self.progress: Progress | None = None
        """What the lease service is told; None until we have been ready for the first time."""
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
        self.tracker = ConfigTracker(settings, self.node, kernel, backends, self.journal, *before)
        self.change = NetworkChange(
            connection.node, connection, kernel, self.journal, settings.route_protocol, self.cached_table.network
        )
        self.table: Table | None = None
        """The leases in force: the last complete snapshot, or the cached table; None: none yet."""
        self._limits = settings.limits()
        self._patient_until = 0.0
        """The loop's time until which a lease service may begin a snapshot before the cached table is used."""
        self._touched: set[str] = set()
        self._touched_at: float | None = None
        """When the first of them was, on the monotonic clock."""
        self._observed = Observations()
        self._was_connected, self._was_ready = False, False
        self._may_log, self._resync_due = LogLimiter(), True
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
                    self.error = ""
                except Unavailable as error:
                    self._note_failure(str(error))
                self.iterations += 1
                self._note_readiness()
                self.tell(self.progress)
            async with self.changed:
                self.changed.notify_all()
            await self._wait(self._looked_at + self._pause())

    async def iteration_after(self, seen: int) -> None:
        """Returns when `iterations` is another number than this one."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.iterations != seen)

    def audit(self, observed: Observations | None = None) -> None:
        """Has everything compared at once; what was `observed` in the kernel says why."""
        if observed is not None:
            self._observed += observed
        self._resync_due = True
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

    def wake_up(self) -> None:
        """Starts an iteration now."""
        self._wake.set()

    @property
    def cached_reason(self) -> str:
        """Why the node is not ready while cached leases are in force."""
        return f"the leases are those of {self.cached_table.since}"

    def tell(self, progress: Progress | None) -> None:
        """Reports the progress of this node to the lease service."""
        self.progress = progress
        self.reporter.tell(progress, self.feed.streams if self.feed.connected else 0)

    def _notice(self, touched: frozenset[str]) -> None:
        if touched:
            self._touched |= touched
            self._touched_at = self._touched_at or time.monotonic()
        if self.feed.connected != self._was_connected:
            self._was_connected = self.feed.connected
            what = "connected" if self.feed.connected else "away; the last leases stay in force"
            self.journal.note(Event(EventKind.LEASE_SERVICE, f"the lease service is {what}", self.feed.error))
        if self.feed.table.lost:
            self.renewer.hear_of_loss(self.feed.table.lost)
        self._wake.set()

    def _pause(self) -> float:
        if self.error:
            return _RETRY_SECONDS
        is_short = self.tracker.error or self.programmer.reconciler.failures or self.tracker.earlier.is_waiting
        return min(self.settings.audit_interval, _RETRY_FAILED_SECONDS if is_short else float("inf"))

    async def _wait(self, deadline: float) -> None:
        """Waits until the loop is woken, or the audit is due, which makes a full comparison due."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError:
            self._resync_due = True
        self._wake.clear()

    async def reconcile_once(self) -> None:
        """One iteration, as far as what is known allows. Raises Unavailable: the kernel does not answer."""
        if self._resync_due:
            self._looked_at = asyncio.get_running_loop().time()
        told = self.feed.table
        store_error = "" if told.store is None or self.feed.error else told.store.error
        self.health.set("lease service", self.feed.error, outage=True)
        self.health.set("store", store_error, outage=True)
        if self.is_paused:
            self.renewer.observe(told)
            if self._resync_due:
                with suppress(Unavailable):
                    await self.programmer.observe()
                self._resync_due = False
            return
        table = self._choose_table(is_away=bool(self.feed.error or store_error or told.network_error))
        if table is None or table.network is None:
            reason = told.network_error or "waiting for the first complete snapshot of leases"
            self.health.set("leases", "" if self.feed.error else reason)
            return
        self.health.set("leases", "" if table is told else self.cached_reason)
        self.journal.cursor = table.cursor
        network = await self.change.network(table, self.renewer.lease, is_told=table is told)
        chosen = table.overrides.get(self.node, ())
        if await self.tracker.update(network, chosen, self.own.published(table), look=self._resync_due):
            self._resync_due = True
            self.health.set("kernel", "a new network configuration or underlay is not programmed yet")
        self.health.set("network", self.tracker.error)
        config = self.tracker.config
        if config is None:
            return
        if table is told and self.feed.connected:
            self.renewer.observe(table)
        if self._resync_due or not self.own.is_settled:
            self._observed += await self.own.apply(config, self.tracker, table, self._observed)
        cursor = table.cursor
        await self._program(config, table)
        self.own.publish(config, self.tracker, table, is_programmed=True)
        if self.tracker.default_route_moved(self.programmer.reconciler.defaults):
            self.audit()
        if table is told:
            if not self.renewer.reason and self.tracker.retire(self.programmer.unused_overlays()):
                self.audit()
            else:
                await self.tracker.remove_stale()
            own, is_current = self.own.confirmed_by(table), not (self.feed.error or store_error)
            previous = self.renewer.previous_subnets
            networks = (network, *self.tracker.earlier.networks)
            self.cache_writer.update(table, own, previous, is_current=is_current, networks=networks)
        # It may have come while the kernel was programmed.
        state = self.own.refusal if self.own.is_settled else "the own subnet is being set up"
        self.health.set("own lease", self.own.reason or state)
        self.cursor = cursor or self.cursor
        self.health.set("snapshot")
        self.health.set("kernel", self.programmer.node_failure)
        if self.cursor and (self.health.ready or self.progress is not None):
            failed, now = self.programmer.failed, time.monotonic()
            self.progress = progress_after(self.progress, self.node, self.cursor, failed, now)

    def _choose_table(self, *, is_away: bool) -> Table | None:
        is_away = is_away and asyncio.get_running_loop().time() >= self._patient_until
        table = self.cached_table.choose(self.feed.table, is_away=is_away)
        if table is not self.table:
            self.table, self._resync_due = table, True
            is_cached = table is not None and table is self.cached_table.table
            self.own.use_cached(self.cached_table.confirmed_at if is_cached else None)
            if is_cached:
                what = "the cached leases are in force"
                self.journal.note(Event(EventKind.LEASE_SERVICE, what, self.cached_reason))
        return table

    async def _program(self, config: OverlayConfig, table: Table) -> None:
        if self._resync_due:
            await self.tracker.read_connected_routes()
        is_told, own = table is self.feed.table, self.own.subnets(table)
        if config.backend.needs_own_subnet and not own:
            return
        links, works = self.tracker.links(config), self.tracker.is_working(config)
        where = (config.network, config.backend, links, own, self._limits, self.settings.ip_blackhole_route)
        change = tuple(self.tracker.earlier_overlays()), self.tracker.connected_by_tasks
        context = PeerContext(*where, not is_told, works, *change).after(self.programmer.context)
        touched, since, self._touched, self._touched_at = self._touched, self._touched_at, set(), None
        is_whole = self._resync_due or context != self.programmer.context
        if not is_whole:
            if is_told and touched:
                await self.programmer.program(context, table.leases, touched, since=since)
            return
        self._resync_due, observed, self._observed = False, self._observed, Observations()
        try:
            await self.programmer.program(context, table.leases, observed=observed, since=since)
        except Unavailable:
            self._observed += observed
            raise
        self.suspicious.set()

    def _note_failure(self, reason: str) -> None:
        if reason != self.error:
            what = "the kernel could not be reconciled; retrying"
            if self._may_log(reason):
                log.warning(what, reason=reason)
            self.journal.note(Event(EventKind.FAILURE, what, reason))
        self.error, self._resync_due = reason, True
        self.health.set("kernel", reason)

    def _note_readiness(self) -> None:
        ready = self.health.ready
        if ready != self._was_ready:
            self._was_ready = ready
            reasons = "; ".join(self.health.reasons)
            self.journal.note(Event(EventKind.READINESS, "ready" if ready else "not ready", reasons))
