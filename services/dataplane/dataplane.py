"""The dataplane's one loop: whatever happens only wakes it, and it brings everything one step closer."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import replace

import structlog
from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import NotYet, Unavailable
from services.core.family import Network
from services.core.lease import Lease, LeaseRequest, Wish
from services.core.progress import Progress
from services.core.subnets import fits
from services.core.table import Table
from services.dataplane.admission import own_refusal
from services.dataplane.backends.backend import Links
from services.dataplane.footing import Footing
from services.dataplane.ground import Ground
from services.dataplane.holder import Holder
from services.dataplane.keeper import device_commands, present_devices
from services.dataplane.netlink.notation import command
from services.dataplane.netlink.objects import KernelObject, Verb, steps
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.overlay import Overlay
from services.dataplane.progress import progress_after
from services.dataplane.reconciler import Reconciler
from services.dataplane.reporter import Reporter
from services.dataplane.settings import DataplaneSettings
from services.dataplane.situation import Situation
from services.dataplane.subnet_file import read_previous_subnets, subnet_file, what_pods_keep, write_subnet_file
from services.runtime.feed import Feed, LeaseConnection
from services.runtime.health import Health

log = structlog.get_logger()

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
        self._previous: dict[int, Network] = {
            cidr.version: cidr for cidr in read_previous_subnets(settings.subnet_file)
        }
        self.footing = Footing(settings, connection.node, kernel, self._previous.values())
        self._limits = settings.limits()
        self._kernel = kernel
        self._health = health
        self._touched: set[str] = set()
        self._resync_due = True
        self._paused = False
        self._settled: Lease | None = None
        self._progress: Progress | None = None
        """What the lease service is told; None until we have been ready for the first time."""
        self._own_refusal = ""
        """Why the lease that we were given must not be used."""
        self._trouble = ""
        """Why the last turn did not get to its end."""
        self._looked_at = 0.0
        """When everything was last compared, or that was last tried; the loop's time."""
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        health.set("kernel", "the first complete snapshot of leases is not programmed yet")

    async def run(self) -> None:
        """For ever. Raises Misconfigured when this node cannot carry the overlay at all."""
        while True:
            async with self._turn:
                try:
                    await self._advance()
                    self._trouble = ""
                except Unavailable as error:
                    if str(error) != self._trouble:
                        log.warning("the kernel could not be brought into line; trying again", reason=str(error))
                    self._trouble, self._resync_due = str(error), True
                    self._health.set("kernel", self._trouble)
                self.turns += 1
                self._report()
            async with self.changed:
                self.changed.notify_all()
            await self._wait(self._looked_at + self._pause())

    def audit(self) -> None:
        """Compares everything at the next turn, which is now."""
        self._resync_due = True
        self._wake.set()

    async def resync(self, *, dry_run: bool) -> tuple[list[str], list[str]]:
        """The commands that bring the kernel into line, and what failed. Ends the pause after a teardown.

        Raises NotYet, Unavailable. The work is the loop's, so that a caller who goes away interrupts nothing.
        """
        async with self._turn:
            commands = await self._preview()
            if dry_run:
                return commands, []
            self._paused, turn = False, self.turns + 1
            self.audit()
        async with self.changed:
            await self.changed.wait_for(lambda: self.turns >= turn)
        if self._trouble:
            raise Unavailable(self._trouble)
        return commands, self._sentences("replace", self.overlay.reconciler.failures)

    async def teardown(self, *, dry_run: bool) -> tuple[list[str], list[str]]:
        """Removes everything of ours, and pauses; returns the commands and what failed."""
        async with self._turn:
            if self.overlay.situation is None:
                raise NotYet("nothing was programmed yet, so there is nothing of this service to remove")
            doomed, names = await self.overlay.everything(), self.overlay.names()
            commands = [command("del", item, names) for _, items in steps(doomed) for item in items]
            failed: Mapping[KernelObject, str] = {}
            if not dry_run:
                log.warning("teardown: everything of ours is removed from the kernel", objects=len(doomed))
                self._paused = True
                self._health.set("kernel", "torn down by an operator; `flannelette resync` or a restart ends it")
                failed = await self._kernel.apply(doomed)
                self.overlay.reconciler.programmed.clear()
                self._progress = self._progress and Progress(self.node, "")
                self._report()
            commands += await self.footing.clear(dry_run=dry_run)
            return commands, self._sentences("del", failed)

    def _notice(self, touched: frozenset[str]) -> None:
        self._touched |= touched
        if self.feed.table.lost and not self._paused:
            self.holder.hear_of_loss(self.feed.table.lost)
        self._wake.set()

    def _wake_up(self) -> None:
        self._wake.set()

    def _pause(self) -> float:
        if self._trouble:
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
        self._health.set("lease service", self.feed.error)
        self._health.set("store", "" if table.store is None or self.feed.error else table.store.error)
        if self._paused:
            return
        if table.network is None or not table.synced:
            reason = table.network_error or "waiting for the first complete snapshot of leases"
            self._health.set("leases", "" if self.feed.error else reason)
            return
        self._health.set("leases")
        if await self.footing.follow(table.network, look=self._resync_due):
            self._resync_due = True
            self._health.set("kernel", "a new network configuration or underlay is not programmed yet")
        self._health.set("network", self.footing.trouble)
        ground = self.footing.ground
        if ground is None:
            return
        self.holder.observe(table)
        if self._resync_due or self.holder.lease is not self._settled:
            await self._settle(ground)
        cursor = table.cursor
        await self._program(ground, table)
        if self.footing.doubts(self.overlay.reconciler.defaults):
            self.audit()
        await self.footing.leave()
        is_settled = self._settled is self.holder.lease  # it may have come while the kernel was programmed
        state = self._own_refusal if is_settled else "the own subnet is being set up"
        self._health.set("own lease", self.holder.reason or state)
        self.cursor = cursor or self.cursor
        self._health.set("kernel")
        if self.cursor and (self._health.ready or self._progress is not None):
            now = time.monotonic()
            self._progress = progress_after(self._progress, self.node, self.cursor, self.overlay.failed, now)

    async def _settle(self, ground: Ground) -> None:
        """Device, own address and `subnet.env`, as the own lease says."""
        own = held = self.holder.lease
        misfit = held is not None and not fits(ground.network, held)
        if misfit:
            own = None
        self._own_refusal = "; ".join(self._refused(ground, own))
        if self._own_refusal:
            log.error("the own lease is refused", lease=held.name if held else "", reason=self._own_refusal)
            own = None
        await self.footing.keep(own, self._published())
        self.holder.want(self._request(ground), ground.network)
        if held is not None and misfit:
            self.holder.lose(f"the lease {held.name} does not fit the network configuration any more")
        if own is not None:
            self._write_subnet_file(ground, own)
        self._settled = held

    def _report(self) -> None:
        self.reporter.tell(self._progress, self.feed.streams if self.feed.connected else 0)

    def _refused(self, ground: Ground, own: Lease | None) -> list[str]:
        """A lease service must not talk us into a subnet either that the operator or the underlay forbids."""
        situation = Situation(ground.network, ground.backend, self._links(ground), limits=self._limits)
        found = [own_refusal(subnet, situation) for subnet in (own.subnets if own else ())]
        return [f"the own lease cannot be used: {each.reason}" for each in found if each]

    def _links(self, ground: Ground) -> Links:
        return Links(ground.underlay, self.footing.devices, self.settings.route_protocol, self.footing.on_link)

    def _write_subnet_file(self, ground: Ground, own: Lease) -> None:
        path, mtu = self.settings.subnet_file, ground.backend.mtu(ground.underlay)
        content = subnet_file(ground.network, own, mtu, ip_masq=self.settings.ip_masq)
        kept = what_pods_keep(path, content)
        if kept:
            log.warning("pods that run already keep what they have until they are made anew", kept=kept)
        try:
            if write_subnet_file(path, content):
                log.info("subnet file written", path=str(path), subnets=[str(s) for s in content.subnets])
            self._health.set("subnet file")
        except OSError as error:
            self._health.set("subnet file", f"cannot write {path}: {error.strerror}")

    async def _program(self, ground: Ground, table: Table) -> None:
        if self._resync_due:
            await self.footing.look_at_routes()
        links = self._links(ground)
        situation = Situation(ground.network, ground.backend, links, self._own_subnets(table), self._limits)
        touched, self._touched = self._touched, set()
        if self._resync_due or situation != self.overlay.situation:
            self._resync_due = False
            await self.overlay.program_all(situation, table.leases.values())
        elif touched and await self.overlay.program_some(touched, table.leases):
            self.audit()

    def _own_subnets(self, table: Table) -> tuple[Network, ...]:
        """Those of the lease we hold; after a restart, until we do, of the one that the table says is ours."""
        own = [self.holder.lease] if self.holder.lease else [o for o in table.leases.values() if o.node == self.node]
        return tuple(subnet.cidr for lease in own for subnet in lease.subnets)

    def _published(self) -> Lease | None:
        """What peers know of us: the lease that we hold, or did before a restart."""
        leases = self.feed.table.leases.values()
        return self.holder.lease or next((lease for lease in leases if lease.node == self.node), None)

    async def _preview(self) -> list[str]:
        ground, last = self.footing.ground, self.overlay.situation
        if ground is None or last is None:
            raise NotYet("; ".join(self._health.reasons) or "no complete snapshot of leases yet")
        # Somebody may have made a device again since we looked; one that is not there yet is known by its name.
        devices = {**last.links.devices, **await present_devices(ground, self.node)}
        on_link = await self.footing.look_at_routes()
        situation = replace(last, links=replace(last.links, devices=devices, on_link=on_link))
        todo = await self.overlay.plan(situation, self.feed.table.leases.values())
        names = situation.links.names()
        commands = await device_commands(ground, self.footing.identity(self.holder.lease, self._published()))
        return commands + [command(verb, item, names) for verb, items in steps(todo) for item in items]

    def _sentences(self, verb: Verb, failures: Mapping[KernelObject, str]) -> list[str]:
        names = self.overlay.names()
        return [f"{command(verb, o, names)}: {why}" for o, why in failures.items()]

    def _request(self, ground: Ground) -> LeaseRequest:
        wishes = []
        for family in ground.families:
            address = ground.underlay.public_address(family)
            assert address is not None  # noqa: S101 - an underlay has one for each enabled family
            data = ground.backend.data(self.footing.devices.get(family))
            wishes.append(Wish(address, data, self._previous.get(family.version)))
        return LeaseRequest(self.node, ground.backend.lease_type, tuple(wishes))
