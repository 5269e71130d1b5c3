"""The dataplane's one loop: whatever happens only wakes it, and it brings everything one step closer."""

import asyncio
import time

from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import Unavailable
from services.core.progress import Progress
from services.core.table import Table
from services.dataplane.footing import Footing
from services.dataplane.ground import Ground
from services.dataplane.holder import Holder
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.overlay import Overlay
from services.dataplane.own import OwnLease
from services.dataplane.progress import progress_after
from services.dataplane.reconciler import Reconciler
from services.dataplane.reporter import Reporter
from services.dataplane.settings import DataplaneSettings
from services.dataplane.situation import Situation
from services.runtime.feed import Feed, LeaseConnection
from services.runtime.health import Health
from services.runtime.logs import get_logger

log = get_logger()

_RETRY_SECONDS = 1.0
_RETRY_FAILED_SECONDS = 5.0


class Dataplane:
    """Holds the kernel to the lease table. Its attributes are what the status calls show."""

    def __init__(
        self, settings: DataplaneSettings, connection: LeaseConnection, kernel: KernelSocket, health: Health
    ) -> None:
        self.settings = settings
        self.node = connection.node
        self.feed = Feed(connection, pb.VIEW_ALL, self._notice)
        self.holder = Holder(connection, settings.subnet_lease_renew_margin * 60, self._wake_up)
        self.reporter = Reporter(connection)
        self.overlay = Overlay(connection.node, Reconciler(kernel))
        self.cursor = ""
        """Of the leases that are in the kernel."""
        self.turns = 0
        """How many have ended."""
        self.changed = asyncio.Condition()
        """Notified after every turn."""
        self.turn = asyncio.Lock()
        """Held while the kernel is compared or changed."""
        self.trouble = ""
        """Why the last turn did not get to its end."""
        self.progress: Progress | None = None
        """What the lease service is told; None until we have been ready for the first time."""
        self.health = health
        self.own = OwnLease(connection.node, settings, self.holder, health)
        self.footing = Footing(settings, connection.node, kernel, self.own.former.values())
        self._limits = settings.limits()
        self._touched: set[str] = set()
        self._resync_due = True
        self._paused = False
        self._looked_at = 0.0
        """When everything was last compared, or that was last tried; the loop's time."""
        self._wake = asyncio.Event()
        health.set("kernel", "the first complete snapshot of leases is not programmed yet")

    async def run(self) -> None:
        """For ever. Raises Misconfigured when this node cannot carry the overlay at all."""
        while True:
            async with self.turn:
                try:
                    await self._advance()
                    self.trouble = ""
                except Unavailable as error:
                    if str(error) != self.trouble:
                        log.warning("the kernel could not be brought into line; trying again", reason=str(error))
                    self.trouble, self._resync_due = str(error), True
                    self.health.set("kernel", self.trouble)
                self.turns += 1
                self.tell(self.progress)
            async with self.changed:
                self.changed.notify_all()
            await self._wait(self._looked_at + self._pause())

    async def turn_after(self, seen: int) -> None:
        """Returns when `turns` is another number than this one."""
        async with self.changed:
            await self.changed.wait_for(lambda: self.turns != seen)

    def audit(self) -> None:
        """Compares everything at the next turn, which is now."""
        self._resync_due = True
        self._wake.set()

    def pause(self, reason: str) -> None:
        """Leaves the kernel alone from now on."""
        self._paused = True
        self.health.set("kernel", reason)

    def resume(self) -> None:
        """Ends a pause, and compares everything."""
        self._paused = False
        self.audit()

    def tell(self, progress: Progress | None) -> None:
        """Has the lease service told how far we are."""
        self.progress = progress
        self.reporter.tell(progress, self.feed.streams if self.feed.connected else 0)

    def _notice(self, touched: frozenset[str]) -> None:
        self._touched |= touched
        if self.feed.table.lost and not self._paused:
            self.holder.hear_of_loss(self.feed.table.lost)
        self._wake.set()

    def _wake_up(self) -> None:
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
        table = self.feed.table
        self.health.set("lease service", self.feed.error)
        self.health.set("store", "" if table.store is None or self.feed.error else table.store.error)
        if self._paused:
            return
        if table.network is None or not table.synced:
            reason = table.network_error or "waiting for the first complete snapshot of leases"
            self.health.set("leases", "" if self.feed.error else reason)
            return
        self.health.set("leases")
        if await self.footing.follow(table.network, look=self._resync_due):
            self._resync_due = True
            self.health.set("kernel", "a new network configuration or underlay is not programmed yet")
        self.health.set("network", self.footing.trouble)
        ground = self.footing.ground
        if ground is None:
            return
        self.holder.observe(table)
        if self._resync_due or not self.own.is_settled:
            await self.own.settle(ground, self.footing, table)
        cursor = table.cursor
        await self._program(ground, table)
        if self.footing.doubts(self.overlay.reconciler.defaults):
            self.audit()
        await self.footing.leave()
        # It may have come while the kernel was programmed.
        state = self.own.refusal if self.own.is_settled else "the own subnet is being set up"
        self.health.set("own lease", self.holder.reason or state)
        self.cursor = cursor or self.cursor
        self.health.set("kernel")
        if self.cursor and (self.health.ready or self.progress is not None):
            now = time.monotonic()
            self.progress = progress_after(self.progress, self.node, self.cursor, self.overlay.failed, now)

    async def _program(self, ground: Ground, table: Table) -> None:
        if self._resync_due:
            await self.footing.look_at_routes()
        links, own = self.footing.links(ground), self.own.subnets(table)
        situation = Situation(
            ground.network, ground.backend, links, own, self._limits, self.settings.ip_blackhole_route
        )
        touched, self._touched = self._touched, set()
        if self._resync_due or situation != self.overlay.situation:
            self._resync_due = False
            await self.overlay.program_all(situation, table.leases.values())
        elif touched and await self.overlay.program_some(touched, table.leases):
            self.audit()
