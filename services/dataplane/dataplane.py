"""The dataplane's one loop: whatever happens only wakes it, and it brings everything one step closer."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import Unavailable
from services.core.progress import Progress
from services.core.table import Table
from services.dataplane.causes import Heard
from services.dataplane.diagnose.claims import claim_findings
from services.dataplane.diagnose.seen import Finding
from services.dataplane.footing import Footing
from services.dataplane.ground import Ground
from services.dataplane.holder import Holder
from services.dataplane.journal import Event, Journal, Kind
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.network_change import NetworkChange
from services.dataplane.overlay import Overlay
from services.dataplane.own import OwnLease
from services.dataplane.progress import progress_after
from services.dataplane.reconciler import Reconciler
from services.dataplane.reporter import Reporter
from services.dataplane.settings import DataplaneSettings
from services.dataplane.situation import Situation
from services.dataplane.subnet_file import read_previous_subnets
from services.runtime.feed import Feed, LeaseConnection
from services.runtime.health import Health
from services.runtime.logs import Rarely, get_logger
from services.runtime.recollection import PATIENCE, Recollection
from services.runtime.recorder import Recorder
from services.runtime.state_file import StateFile
from services.runtime.turn import Turn
from services.runtime.version import version

log = get_logger()

OWN_KEY = "own-key"
_RETRY_SECONDS = 1.0
_RETRY_FAILED_SECONDS = 5.0


class Dataplane:
    """Holds the kernel to the lease table. Its attributes are what the status calls show."""

    def __init__(
        self,
        settings: DataplaneSettings,
        connection: LeaseConnection,
        kernel: KernelSocket,
        health: Health,
        state: StateFile,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = settings
        self.node = connection.node
        self.journal = Journal()
        self.journal.note(Event(Kind.SERVICE_STARTED, f"flannelette-dataplane {version()} of {self.node} started"))
        self.recollection = Recollection(connection.node, state)
        self.recorder = Recorder(connection.node, state)
        former = (*read_previous_subnets(settings.subnet_file), *self.recollection.former)
        self.feed = Feed(connection, pb.VIEW_ALL, self._notice, most=settings.max_leases)
        margin = settings.subnet_lease_renew_margin * 60
        self.holder = Holder(connection, margin, self.wake_up, self.journal, clock, former=former)
        self.reporter = Reporter(connection)
        self.overlay = Overlay(connection.node, Reconciler(kernel), self.journal)
        self.cursor = ""
        """Of the leases that are in the kernel."""
        self.turns = 0
        """How many have ended."""
        self.changed = asyncio.Condition()
        """Notified after every turn."""
        self.turn = Turn()
        """Held while the kernel is compared or changed."""
        self.trouble = ""
        """Why the last turn did not get to its end."""
        self.progress: Progress | None = None
        """What the lease service is told; None until we have been ready for the first time."""
        self.findings: tuple[Finding, ...] = ()
        """What else of the host is in the way, as far as it is known."""
        self.suspicious = asyncio.Event()
        """Set when that may be something else now."""
        self.health = health
        self.own = OwnLease(
            connection.node, settings, self.holder, health, self.journal, self.recollection.own, clock
        )
        self.footing = Footing(settings, connection.node, kernel, self.journal, former)
        self.change = NetworkChange(
            connection.node, connection, kernel, self.journal, settings.route_protocol, self.recollection.network
        )
        self.table: Table | None = None
        """The leases in force: the last complete snapshot, or what is remembered; None: none yet."""
        self._limits = settings.limits()
        self._patient_until = 0.0
        """The loop's time until which a lease service may begin a snapshot before we go by what is remembered."""
        self._touched: set[str] = set()
        self._touched_at: float | None = None
        """When the first of them was, on the monotonic clock."""
        self._heard = Heard()
        self._was_connected, self._was_ready = False, False
        self._is_news = Rarely()
        self._resync_due = True
        self._paused = False
        self._looked_at = 0.0
        """When everything was last compared, or that was last tried; the loop's time."""
        self._wake = asyncio.Event()
        health.set("kernel", "the first complete snapshot of leases is not programmed yet")

    async def run(self) -> None:
        """For ever. Raises Misconfigured when this node cannot carry the overlay at all."""
        self._patient_until = asyncio.get_running_loop().time() + PATIENCE
        asyncio.get_running_loop().call_at(self._patient_until, self._wake.set)
        while True:
            async with self.turn:
                try:
                    await self._advance()
                    self.trouble = ""
                except Unavailable as error:
                    if str(error) != self.trouble:
                        what = "the kernel could not be brought into line; trying again"
                        if self._is_news(str(error)):
                            log.warning(what, reason=str(error))
                        self.journal.note(Event(Kind.FAILURE, what, str(error)))
                    self.trouble, self._resync_due = str(error), True
                    self.health.set("kernel", self.trouble)
                self.turns += 1
                self._note_readiness()
                self.tell(self.progress)
            async with self.changed:
                self.changed.notify_all()
            await self._wait(self._looked_at + self._pause())

    async def turn_after(self, seen: int) -> None:
        """Returns when `turns` is another number than this one."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.turns != seen)

    def audit(self, heard: Heard | None = None) -> None:
        """Compares everything at the next turn, which is now; what was `heard` of the kernel says why."""
        if heard is not None:
            self._heard.add(heard)
        self._resync_due = True
        self._wake.set()

    def pause(self, reason: str) -> None:
        """Leaves the kernel alone from now on, and a lease that is taken away or given back."""
        self._paused = True
        self.holder.pause()
        self.health.set("kernel", reason)

    def resume(self) -> None:
        """Ends a pause, and compares everything."""
        self._paused = False
        self.audit(Heard(is_asked=True))

    def wake_up(self) -> None:
        """Has a turn made now."""
        self._wake.set()

    @property
    def is_paused(self) -> bool:
        """Whether the kernel is left alone."""
        return self._paused

    @property
    def in_the_way(self) -> tuple[Finding, ...]:
        """What else of the host is in the way, who writes this node's key, and who claims what another node has."""
        fight = self.holder.fight
        fights = (Finding(OWN_KEY, *fight, is_broken=False),) if fight else ()
        return (*self.findings, *fights, *claim_findings(self.overlay.roster))

    @property
    def remembered_reason(self) -> str:
        """Why we are not ready while remembered leases are in force."""
        return f"the leases are those of {self.recollection.since}"

    def tell(self, progress: Progress | None) -> None:
        """Has the lease service told how far we are."""
        self.progress = progress
        self.reporter.tell(progress, self.feed.streams if self.feed.connected else 0)

    def _notice(self, touched: frozenset[str]) -> None:
        if touched:
            self._touched |= touched
            self._touched_at = self._touched_at or time.monotonic()
        if self.feed.connected != self._was_connected:
            self._was_connected = self.feed.connected
            what = "connected" if self.feed.connected else "away; the last leases stay in force"
            self.journal.note(Event(Kind.LEASE_SERVICE, f"the lease service is {what}", self.feed.error))
        if self.feed.table.lost:
            self.holder.hear_of_loss(self.feed.table.lost)
        self._wake.set()

    def _pause(self) -> float:
        if self.trouble:
            return _RETRY_SECONDS
        is_short = self.footing.trouble or self.overlay.reconciler.failures
        return min(self.settings.audit_interval, _RETRY_FAILED_SECONDS if is_short else float("inf"))

    async def _wait(self, deadline: float) -> None:
        """Until something wakes us, or everything is due to be compared."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._wake.wait()
        except TimeoutError:
            self._resync_due = True
        self._wake.clear()

    async def _advance(self) -> None:
        """One turn, from whatever is known now as far as it goes."""
        if self._resync_due:
            self._looked_at = asyncio.get_running_loop().time()
        told = self.feed.table
        store_error = "" if told.store is None or self.feed.error else told.store.error
        self.health.set("lease service", self.feed.error)
        self.health.set("store", store_error)
        if self._paused:
            self.holder.observe(told)
            if self._resync_due:
                with suppress(Unavailable):
                    await self.overlay.look_beside()
                self._resync_due = False
            return
        table = self._choose_table(is_away=bool(self.feed.error or store_error or told.network_error))
        if table is None or table.network is None:
            reason = told.network_error or "waiting for the first complete snapshot of leases"
            self.health.set("leases", "" if self.feed.error else reason)
            return
        self.health.set("leases", "" if table is told else self.remembered_reason)
        self.journal.cursor = table.cursor
        chosen = table.choices.get(self.node, ())
        network = await self.change.network(table, self.holder.lease, is_told=table is told)
        if await self.footing.follow(network, chosen, look=self._resync_due):
            self._resync_due = True
            self.health.set("kernel", "a new network configuration or underlay is not programmed yet")
        self.health.set("network", self.footing.trouble)
        ground = self.footing.ground
        if ground is None:
            return
        if table is told and self.feed.connected:
            self.holder.observe(table)
        if self._resync_due or not self.own.is_settled:
            await self.own.settle(ground, self.footing, table, self._heard)
        cursor = table.cursor
        await self._program(ground, table)
        if self.footing.doubts(self.overlay.reconciler.defaults):
            self.audit()
        if table is told:
            await self.footing.leave()
            own, is_current = self.own.confirmed(table), not (self.feed.error or store_error)
            self.recorder.tell(table, own, self.holder.former, is_current=is_current, network=network)
        # It may have come while the kernel was programmed.
        state = self.own.refusal if self.own.is_settled else "the own subnet is being set up"
        self.health.set("own lease", self.own.reason or state)
        self.cursor = cursor or self.cursor
        self.health.set("kernel")
        if self.cursor and (self.health.ready or self.progress is not None):
            now = time.monotonic()
            self.progress = progress_after(self.progress, self.node, self.cursor, self.overlay.failed, now)

    def _choose_table(self, *, is_away: bool) -> Table | None:
        is_away = is_away and asyncio.get_running_loop().time() >= self._patient_until
        table = self.recollection.choose(self.feed.table, is_away=is_away)
        if table is not self.table:
            self.table, self._resync_due = table, True
            is_remembered = table is not None and table is self.recollection.table
            self.own.assume(self.recollection.known_at if is_remembered else None)
            if is_remembered:
                what = "the leases that this node remembers are in force"
                self.journal.note(Event(Kind.LEASE_SERVICE, what, self.remembered_reason))
        return table

    async def _program(self, ground: Ground, table: Table) -> None:
        if self._resync_due:
            await self.footing.look_at_routes()
        links, own, is_told = self.footing.links(ground), self.own.subnets(table), table is self.feed.table
        situation = Situation(
            ground.network,
            ground.backend,
            links,
            own,
            self._limits,
            self.settings.ip_blackhole_route,
            adds_only=not is_told,
        )
        touched, self._touched = self._touched, set()
        since, self._touched_at = self._touched_at, None
        if self._resync_due or situation != self.overlay.situation:
            self._resync_due = False
            heard, self._heard = self._heard, Heard()
            try:
                await self.overlay.program_all(situation, table.leases.values(), heard)
                self.suspicious.set()
            except Unavailable:
                self._heard.add(heard)
                raise
        elif is_told and touched:
            await self.overlay.program_some(touched, table.leases, since)

    def _note_readiness(self) -> None:
        ready = self.health.ready
        if ready != self._was_ready:
            self._was_ready = ready
            reasons = "; ".join(self.health.reasons)
            self.journal.note(Event(Kind.READINESS, "ready" if ready else "not ready", reasons))
