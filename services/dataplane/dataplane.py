"""The dataplane's one loop: whatever happens only wakes it, and it brings everything one step closer."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import structlog
from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import InvalidInput, Misconfigured, NotYet, Unavailable
from services.core.family import Family, Network
from services.core.lease import Lease, LeaseRequest, Wish
from services.core.network import NetworkConfig
from services.core.plan import Plan
from services.dataplane import metrics
from services.dataplane.backends.backend import Device, Links
from services.dataplane.ground import Ground, find_ground
from services.dataplane.holder import Holder
from services.dataplane.keeper import device_commands, keep_devices, remove_devices
from services.dataplane.netlink.links import is_there
from services.dataplane.netlink.notation import command
from services.dataplane.netlink.objects import KernelObject, steps
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.ownership import Domain
from services.dataplane.peers import Peer, Situation, peer_of
from services.dataplane.reconciler import KernelPlan, Reconciler, Scope
from services.dataplane.settings import DataplaneSettings
from services.dataplane.subnet_file import read_previous_subnets, subnet_file, write_subnet_file
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
        self.reconciler = Reconciler(kernel)
        self.ground: Ground | None = None
        self.devices: dict[Family, Device] = {}
        self.situation: Situation | None = None
        self.peers: dict[str, Peer] = {}
        self.cursor = ""
        """Of the leases that are in the kernel."""
        self.last_resync: float | None = None
        self.last_resync_changes = 0
        self.repairs = 0
        self.changed = asyncio.Condition()
        """Notified after every turn."""
        self._previous: dict[int, Network] = {
            cidr.version: cidr for cidr in read_previous_subnets(settings.subnet_file)
        }
        self._kernel = kernel
        self._health = health
        self._touched: set[str] = set()
        self._resync_due = True
        self._paused = False
        self._settled: Lease | None = None
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()
        health.set("kernel", "the first complete snapshot of leases is not programmed yet")

    async def run(self) -> None:
        """For ever. Raises Misconfigured when this node cannot carry the overlay at all."""
        while True:
            pause = self.settings.audit_interval
            async with self._turn:
                try:
                    await self._advance()
                    pause = min(pause, _RETRY_FAILED_SECONDS) if self.reconciler.failures else pause
                except Unavailable as error:
                    log.warning("the kernel could not be brought into line; trying again", reason=str(error))
                    self._health.set("kernel", str(error))
                    self._resync_due, pause = True, _RETRY_SECONDS
            async with self.changed:
                self.changed.notify_all()
            await self._wait(pause)

    def audit(self) -> None:
        """Compares everything at the next turn, which is now."""
        self._resync_due = True
        self._wake.set()

    async def resync(self, *, dry_run: bool) -> tuple[list[str], list[str]]:
        """The commands that bring the kernel into line, and what failed. Ends the pause after a teardown."""
        async with self._turn:
            if dry_run:
                return await self._preview(), []
            self._paused, self._resync_due = False, True
            commands = await self._preview()
            await self._advance()
            names = self._names()
            return commands, [f"{command('replace', o, names)}: {r}" for o, r in self.reconciler.failures.items()]

    async def teardown(self, *, dry_run: bool) -> tuple[list[str], list[str]]:
        """Removes everything of ours, and pauses; returns the commands and what failed."""
        async with self._turn:
            if self.situation is None:
                raise NotYet("nothing was programmed yet, so there is nothing of this service to remove")
            scope, names = self._scope(self.situation), self._names()
            todo, _ = await self.reconciler.compare(set(), scope)
            # What is on our devices goes with them.
            elsewhere = frozenset(o for o in todo.delete if o.ifindex not in scope.domain.devices)
            doomed: KernelPlan = Plan(frozenset(), elsewhere)
            commands = [command("del", item, names) for _, items in steps(doomed) for item in items]
            failed: Mapping[KernelObject, str] = {}
            if not dry_run:
                log.warning("teardown: everything of ours is removed from the kernel", objects=len(todo))
                self._paused = True
                self._health.set("kernel", "torn down by an operator; `flannelette resync` or a restart ends it")
                failed = await self._kernel.apply(doomed)
                self.reconciler.programmed.clear()
            commands += await remove_devices((d.name for d in self.devices.values()), dry_run=dry_run)
            return commands, [f"{command('del', o, names)}: {reason}" for o, reason in failed.items()]

    def _notice(self, touched: frozenset[str]) -> None:
        self._touched |= touched
        self._wake.set()

    def _wake_up(self) -> None:
        self._wake.set()

    async def _wait(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()
                self._wake.clear()
                return
        self._resync_due = True

    async def _advance(self) -> None:
        """One turn, from whatever is known now as far as it goes."""
        table = self.feed.table
        self._health.set("lease service", self.feed.error)
        self._health.set("store", "" if table.store is None or self.feed.error else table.store.error)
        if self._paused:
            return
        if table.network is None or not table.synced:
            reason = table.network_error or "waiting for the first complete snapshot of leases"
            self._health.set("leases", "" if self.feed.error else reason)
            return
        self._health.set("leases", "")
        await self._stand_on(table.network)
        if self.ground is None:
            return
        self.holder.observe(table)
        if self._resync_due or self.holder.lease is not self._settled:
            await self._settle(self.ground)
        await self._program(self.ground)
        self._health.set("own lease", self.holder.reason)
        self.cursor = table.cursor or self.cursor
        self._health.set("kernel")

    async def _stand_on(self, network: NetworkConfig) -> None:
        """Follows a new network configuration; one that we cannot carry leaves the old one in force."""
        if self.ground is not None and self.ground.network == network:
            return
        try:
            ground = await find_ground(network, self.settings.interface_choice(), self._kernel)
        except InvalidInput as error:
            if isinstance(error, Misconfigured) and self.ground is None:
                raise
            self._health.set("network", str(error))
            return
        self._health.set("network")
        before, self.ground, self._resync_due = set(self.devices.values()), ground, True
        self.devices = await keep_devices(ground, self.node, None)
        await remove_devices({d.name for d in before} - {d.name for d in self.devices.values()})

    async def _settle(self, ground: Ground) -> None:
        """Device, own address and `subnet.env`, as the own lease says."""
        own = self.holder.lease
        self.devices = await keep_devices(ground, self.node, own)
        self.holder.want(self._request(ground))
        if own is not None:
            content = subnet_file(
                ground.network, own, ground.backend.mtu(ground.underlay), ip_masq=self.settings.ip_masq
            )
            try:
                if write_subnet_file(self.settings.subnet_file, content):
                    log.info(
                        "subnet file written",
                        path=str(self.settings.subnet_file),
                        subnets=[str(s) for s in content.subnets],
                    )
                self._health.set("subnet file")
            except OSError as error:
                self._health.set("subnet file", f"cannot write {self.settings.subnet_file}: {error.strerror}")
        self._settled = own

    async def _program(self, ground: Ground) -> None:
        own = tuple(subnet.cidr for subnet in self.holder.lease.subnets) if self.holder.lease else ()
        links = Links(ground.underlay, self.devices, self.settings.route_protocol)
        situation = Situation(ground.network, ground.backend, links, own)
        if self._resync_due or situation != self.situation:
            await self._program_all(situation)
        elif self._touched:
            await self._program_touched(situation)

    async def _program_all(self, situation: Situation) -> None:
        expected = situation == self.situation
        started = time.perf_counter()
        self.situation, self._resync_due = situation, False
        self._touched.clear()
        leases = self.feed.table.leases.values()
        self.peers = {lease.name: peer_of(lease, situation) for lease in leases if lease.node != self.node}
        todo = await self.reconciler.resync(self._desired(), self._scope(situation))
        self.last_resync, self.last_resync_changes = time.time(), len(todo)
        metrics.RESYNC_SECONDS.observe(time.perf_counter() - started)
        if todo and expected:
            self.repairs += len(todo)
            metrics.REPAIRS.inc(len(todo))
        if todo or not expected:
            log.info("kernel brought into line", peers=len(self.peers), put=len(todo.put), deleted=len(todo.delete))

    async def _program_touched(self, situation: Situation) -> None:
        names, self._touched = self._touched, set()
        before: set[KernelObject] = set()
        after: set[KernelObject] = set()
        for name in names:
            old, lease = self.peers.pop(name, None), self.feed.table.leases.get(name)
            if old is not None:
                before |= old.objects
            if lease is not None and lease.node != self.node:
                peer = self.peers[name] = peer_of(lease, situation)
                after |= peer.objects
                if peer.ignored:
                    log.warning("a lease is ignored", lease=name, node=lease.node, reason=peer.ignored)
        await self.reconciler.update(before, after)

    async def _preview(self) -> list[str]:
        if self.situation is None or self.ground is None:
            raise NotYet("; ".join(self._health.reasons) or "no complete snapshot of leases yet")
        scope, names = self._scope(self.situation), self._names()
        present = {index for index in scope.domain.devices if await is_there(index)}
        scope = replace(scope, domain=replace(scope.domain, devices=present))
        todo, _ = await self.reconciler.compare(self._desired(), scope)
        commands = await device_commands(self.ground, self.node, self.holder.lease)
        return commands + [command(verb, item, names) for verb, items in steps(todo) for item in items]

    def _desired(self) -> set[KernelObject]:
        return set().union(*(peer.objects for peer in self.peers.values()))

    def _scope(self, situation: Situation) -> Scope:
        families = tuple(n.family for n in situation.network.families)
        devices = {device.index for device in situation.links.devices.values()}
        networks = tuple(n.cidr for n in situation.network.families)
        return Scope(families, Domain(networks, situation.own_subnets, devices, self.settings.route_protocol))

    def _names(self) -> dict[int, str]:
        return self.situation.links.names() if self.situation else {}

    def _request(self, ground: Ground) -> LeaseRequest:
        wishes = []
        for family in ground.families:
            address = ground.underlay.public_address(family)
            assert address is not None  # noqa: S101 - an underlay has one for each enabled family
            wishes.append(
                Wish(address, ground.backend.data(self.devices.get(family)), self._previous.get(family.version))
            )
        return LeaseRequest(self.node, ground.backend.lease_type, tuple(wishes))
