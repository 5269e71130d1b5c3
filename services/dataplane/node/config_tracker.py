"""The network configuration and the overlay configuration in force, as leases and the underlay change; the devices.

Of a network configuration it is said whether it waits while it would take away the node's own subnet, and what it
claims beside other networks of one network namespace.
"""

import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from ipaddress import ip_address, ip_network
from itertools import chain
from typing import Final, Protocol

from flannelette.services.core.backend_types import UDP
from flannelette.services.core.errors import FlanneletteError, InvalidInput, Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, Address, Family, Network
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.network_moves import PendingMove, hands_out, in_force, pending_move
from flannelette.services.core.leases.table import PublicIpOverrides, Table
from flannelette.services.core.network import NetworkConfig, contains
from flannelette.services.dataplane.backends.backend import Backends, NodeIdentity, NodeLinks, TaskReports
from flannelette.services.dataplane.events import (
    PENDING,
    Cause,
    Event,
    NodeEventKind,
    NodeJournal,
    Observation,
    Observations,
    describe_device,
)
from flannelette.services.dataplane.links import actual as links
from flannelette.services.dataplane.links.interfaces import Device, Interface, LinkSpec
from flannelette.services.dataplane.links.reconcile import (
    LinkResult,
    find_leftovers,
    reconcile_devices,
    remove_devices,
)
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.objects import Route
from flannelette.services.dataplane.node.overlay_config import (
    EarlierOverlay,
    EarlierOverlays,
    OverlayConfig,
    default_interface,
    is_default,
    is_underlay_unchanged,
    read_connected,
    require_families,
    resolve_config,
    resolve_earlier,
)
from flannelette.services.dataplane.peers import Overlay
from flannelette.services.dataplane.settings import ROUTE_PROTOCOL, DataplaneSettings
from flannelette.services.dataplane.underlay import ConnectedRoutes, Tenure, Underlay
from flannelette.services.runtime.networks import NAMED_PROTOCOLS
from flannelette.services.runtime.os.names import DEVICE, MARK, RANGE, UDP_PORT, Claims, NameClaim
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger

log = get_logger()

_VIRTUALBOX: Final = ip_address("10.0.2.15")
"""Address of the first, NATed interface of every guest of VirtualBox."""
_RETRY_SECONDS: Final = 10.0
"""Seconds until devices of a new configuration that could not be made are tried again, while the last one is in
force."""


class ConfigTracker:
    """The last configuration that could be applied stays in force; `error` says why a newer one could not."""

    def __init__(
        self,
        settings: DataplaneSettings,
        node: str,
        kernel: Actuator,
        backends: Backends,
        journal: NodeJournal,
        former: Iterable[Network] = (),
        earlier: Sequence[NetworkConfig] = (),
        machine: str = "",
    ) -> None:
        self.config: OverlayConfig | None = None
        self.devices: Mapping[Family, Device] = {}
        self.earlier = EarlierOverlays(node, journal)
        self.connected = ConnectedRoutes()  # at the last look
        self.error = ""
        self._settings, self._node, self._machine = settings, node, machine
        self._kernel, self._backends, self._journal = kernel, backends, journal
        self._place = (settings, kernel, backends, node)
        self._kept: object = None
        """What the devices were brought into line with, last time."""
        self._last: tuple[OverlayConfig, Mapping[Family, Device], tuple[EarlierOverlay, ...]] | None = None
        """What was in force before the present configuration, until that one has its devices."""
        self._impossible: tuple[OverlayConfig, float] | None = None
        """A configuration whose devices could not be made, and when that is tried again."""
        self.reports = TaskReports()
        self._remembered = tuple(earlier)
        self._asked: tuple[NetworkConfig, PublicIpOverrides] | None = None
        """The network configuration that was asked for last, and what operators have chosen."""
        self._tenure = Tenure()
        self._is_overtaken = False  # the default route goes out of another interface now
        self._left: set[str] = set()  # names of devices that an earlier configuration needed
        self._has_looked_around = False  # for what an earlier process has left
        self._former = frozenset(former)  # subnets that are or were our own
        self._may_log = LogLimiter()

    async def update(
        self,
        network: NetworkConfig,
        chosen: PublicIpOverrides = (),
        published: Lease | None = None,
        *,
        look: bool,
    ) -> bool:
        """Whether there is a new configuration. With `look`, reads the underlay and retries what was refused.

        `chosen` is what operators have chosen for this node in the store, `published` its lease.

        Raises Misconfigured when this node cannot carry its first network, Unavailable when it cannot yet.
        """
        config, asked, self._asked = self.config, self._asked, (network, chosen)
        is_news, is_asked_anew = asked is None or network != asked[0], asked != self._asked
        if config is not None and (config.network, config.chosen) == (network, chosen):
            kept = self._kept_addresses()
            is_shaken = look and (self._is_overtaken or not await is_underlay_unchanged(config, kept))
            if not is_shaken:
                self.error = ""
                return False
        if not is_asked_anew and not look:
            return False
        if is_news:
            _tell_warnings(network.warnings)
        self._tenure.take_published(published.addresses if published else ())
        try:
            found = await resolve_config(network, *self._place, chosen, self._kept_addresses())
            if config is not None:
                require_families(found, config)
            devices = found.devices(NodeIdentity(self._node))
            await claim(network, devices, self._settings, self._kernel, self._backends.claims, self._former)
        except (InvalidInput, Unavailable) as error:
            if config is None and isinstance(error, Misconfigured | Unavailable):
                raise
            if str(error) != self.error:
                _tell_refusal(self._journal, str(error))
            self.error = str(error)
            return False
        is_retry = self._impossible is not None and self._impossible[0] == found
        if self._impossible is not None and is_retry and time.monotonic() < self._impossible[1]:
            return False
        _tell_warnings(w for w in found.warnings if is_news or config is None or w not in config.warnings)
        self.error, self._is_overtaken = "", False
        if found == config:
            return False
        await self._put_in_force(found)
        was_in_force = config and (config.network, config.backend.way)
        if was_in_force != (found.network, found.backend.way) and not is_retry:
            _tell_network(self._journal, network, found.backend.way)
        if config is None or _place(config.underlay) != _place(found.underlay):
            _tell_underlay(self._journal, found.underlay)
        return True

    async def _put_in_force(self, found: OverlayConfig) -> None:
        """The configuration before it stays as well, as far as that is possible, until no peer needs it."""
        config, devices, earlier = self.config, self.devices, self.earlier.overlays
        if config is None:
            remembered = [n for n in self._remembered if n != found.network]
            before = await resolve_earlier(remembered, *self._place, found.chosen, self._kept_addresses())
        else:
            before = [EarlierOverlay(config, devices), *earlier]
            if config.network != found.network:
                self._last = config, devices, earlier
        self._left |= {device.name for each in before for device in each.devices.values()}
        self.config = found
        self._tenure.enter(found.underlay.addresses, time.monotonic())
        self.earlier.keep(found, before)
        if config is not None and any(each.devices is devices for each in self.earlier.overlays):
            self.devices = {}

    def _kept_addresses(self) -> tuple[Address, ...]:
        """The addresses that the node is known by, the most wanted first."""
        return self._tenure.order(time.monotonic())

    def default_route_moved(self, defaults: Iterable[Route]) -> bool:
        """Whether the default route, if it has told the underlay, is another now: then look again."""
        config = self.config
        if config is None or config.default_index is None:
            return False
        now = default_interface(filter(is_default, defaults), config.families)
        self._is_overtaken = now is not None and now != config.default_index
        return self._is_overtaken

    async def read_connected_routes(self) -> ConnectedRoutes:
        """Notes which addresses are neighbours now, where a backend asks for it. Raises Unavailable."""
        asks = any(each.backend.follows_routes for each in self.configs)
        where = (self._kernel, self.configs[0], self._settings.route_protocol) if asks else None
        self.connected = await read_connected(*where) if where else ConnectedRoutes()
        return self.connected

    @property
    def configs(self) -> list[OverlayConfig]:
        """The configuration in force, and the earlier ones."""
        return [] if self.config is None else [self.config, *(each.config for each in self.earlier.overlays)]

    def all_devices(self) -> Iterator[Device]:
        """Yields the devices of the configuration in force, then those of earlier ones."""
        return chain(self.devices.values(), self.earlier.devices())

    def links(self, config: OverlayConfig, devices: Mapping[Family, Device] | None = None) -> NodeLinks:
        """What the objects of a peer refer to; without `devices`, those of the configuration in force."""
        networks = tuple(cidr for family in config.families for cidr in config.network.cidrs(family))
        devices = self.devices if devices is None else devices
        where = (config.underlay, devices, self._settings.route_protocol, self.connected, networks)
        return NodeLinks(*where, is_changing=bool(self.earlier.overlays), lacking=config.lacking)

    def earlier_overlays(self) -> Iterator[Overlay]:
        """Yields the overlays of `earlier`, for the context of peers."""
        for each in self.earlier.overlays:
            yield Overlay(each.name(self.configs), each.config.backend, self.links(each.config, each.devices))

    def is_working(self, config: OverlayConfig) -> bool:
        """Whether its backend carries packets, as far as its task decides that."""
        return not config.backend.works_by_task or (config.backend, config.underlay) in self.reports.working

    @property
    def connected_by_tasks(self) -> frozenset[Hashable]:
        """See PeerContext."""
        return self.reports.connected if self.earlier.overlays else frozenset()

    def retire(self, unused: Set[str]) -> bool:
        """Gives up earlier overlays that have been `unused` (by name) for long enough; whether there were any."""
        is_over = self.config is not None and self.is_working(self.config)
        gone = self.earlier.retire(self.config, unused) if self.config and is_over else None
        self._left |= gone or set()
        return gone is not None

    def identity(self, own: Lease | None, published: Lease | None, cached: Lease | None) -> NodeIdentity:
        """What the devices shall say of this node."""
        return NodeIdentity(self._node, own, published, cached, self._former, self._machine)

    async def reconcile_links(
        self, own: Lease | None, published: Lease | None, cached: Lease | None, observed: Observations
    ) -> Observations:
        """Reconciles the devices with the kernel. Raises Misconfigured, Unavailable.

        `observed` explains in the journal what had to be repaired. Returns the deletions of devices that were found
        and are not in `observed`: the notification of a deletion may be the last of many.
        """
        started = time.monotonic()
        assert self.config is not None  # noqa: S101 - devices are reconciled after a configuration was applied
        self._left |= {device.name for device in self.devices.values()}
        if own is not None:
            self._former |= {subnet.cidr for subnet in own.subnets}
        identity = self.identity(own, published, cached)
        desired = [config.devices(identity) for config in self.configs]
        if not self._has_looked_around:
            wanted = {each.name for some in desired for each in some}
            protocol, kinds = self._settings.route_protocol, self._backends.link_kinds
            self._left |= await find_leftovers(self._kernel, protocol, wanted, self._former, kinds)
            self._has_looked_around = True
        now = (self.configs, identity)
        is_repair, before = self._kept == now, list(self.all_devices())
        spare = unclaimed(self._left - {d.name for d in self.earlier.devices()}, self._backends.claims)
        result = await reconcile_devices(desired[0], self.devices, spare)
        done, deleted = dict(result.done), Observations()
        if result.error is None:
            self.devices, self._kept = result.devices, now
            for each, specs in zip(self.earlier.overlays, desired[1:], strict=True):
                more = await reconcile_devices(specs, each.devices)
                self._left |= self.earlier.note(each, more.devices, str(more.error or ""))
                done |= more.done
            if is_repair:
                found = _deletions(before, self.all_devices()) - observed.counts.keys()
                deleted = Observations(dict.fromkeys(found, 1))
        known = observed + deleted
        told = {name: steps for name, steps in done.items() if steps}
        if result.error is not None:  # what fails is tried again each second
            told = {n: steps for n, steps in told.items() if self._may_log(tuple(s.command for s in steps))}
        seconds = time.monotonic() - (observed.since if is_repair and observed.since else started)
        for name, steps in told.items():
            self._journal.note(describe_device(name, steps, known if is_repair else None, seconds))
            if not is_repair:  # the journal logs repairs
                _tell_commands(step.command for step in steps)
        if result.error is not None:
            self._go_back(result)
            raise result.error
        self._last = self._impossible = None
        return deleted

    def _go_back(self, result: LinkResult) -> None:
        """Puts the last configuration in force again, after devices of the new one could not be made."""
        if self._last is None or self.config is None:
            return
        reason = str(result.error)
        if self._may_log(reason):
            _tell_refusal(self._journal, reason)
        self._left |= {device.name for device in result.devices.values()}
        self._impossible = self.config, time.monotonic() + _RETRY_SECONDS
        self.config, self.devices, self.earlier.overlays = self._last
        self.error, self._last, self._kept = reason, None, None

    async def remove_stale(self) -> None:
        """Removes devices that nothing needs any more. Call it once the peers are reached without them."""
        if left := self._left - {device.name for device in self.all_devices()}:
            await self._remove(left, "an earlier network configuration or an earlier process needed it")
        self._left.clear()
        keep_claims(self.all_devices(), self._backends.claims)

    async def remove_all(self, *, dry_run: bool) -> list[str]:
        """Removes every device; returns the commands."""
        names = unclaimed(self._left | {device.name for device in self.all_devices()}, self._backends.claims)
        if dry_run:
            steps, _ = await remove_devices(sorted(names), dry_run=True)
            return [step.command for step in steps]
        commands = await self._remove(names, "an operator")
        self.devices, self._kept = {}, None
        self.earlier.forget()
        self._is_overtaken = True  # so that the backend is prepared again
        self._left.clear()
        keep_claims(self.all_devices(), self._backends.claims)
        return commands

    async def _remove(self, names: Collection[str], cause: str) -> list[str]:
        """Removes devices and tells of each that is gone, whatever becomes of the next. Raises Unavailable."""
        _, outcome = await remove_devices(sorted(unclaimed(names, self._backends.claims)))
        commands = [step.command for step in outcome.done]
        _tell_commands(commands)
        for command in commands:
            self._journal.note(Event(NodeEventKind.DEVICE, f"device removed: {command}", cause))
        if outcome.error is not None:
            raise outcome.error
        return commands


def _tell_network(journal: NodeJournal, network: NetworkConfig, way: str) -> None:
    """A configuration is in force; `way`: see Backend."""
    words = ", ".join(filter(None, [*(str(n.cidr) for n in network.families), network.backend_type, way]))
    journal.note(Event(NodeEventKind.NETWORK, f"network configuration: {words}", "lease service"))


def _tell_refusal(journal: NodeJournal, reason: str) -> None:
    """A configuration is not, and the last one stays."""
    what = "the network configuration cannot be applied"
    log.warning(what, reason=reason)
    journal.note(Event(NodeEventKind.FAILURE, what, reason))


def _tell_warnings(warnings: Iterable[str]) -> None:
    """What a configuration says and this version does otherwise."""
    for warning in warnings:
        log.warning("network configuration", warning=warning)


def _tell_underlay(journal: NodeJournal, underlay: Underlay) -> None:
    """An underlay is chosen."""
    words = f"{underlay.name}, {', '.join(map(str, underlay.addresses))}, mtu {underlay.mtu}"
    journal.note(Event(NodeEventKind.UNDERLAY, f"underlay chosen: {words}", underlay.reason))
    log.info(
        "underlay chosen",
        interface=underlay.name,
        addresses=[str(address) for address in underlay.addresses],
        reason=underlay.reason,
    )
    if _VIRTUALBOX in underlay.addresses:
        log.warning(
            f"every VirtualBox guest has the address {_VIRTUALBOX}, so that no other can reach this one by it: "
            "choose an interface with --iface",
            interface=underlay.name,
        )


def _tell_commands(commands: Iterable[str]) -> None:
    """What was done to devices."""
    for command in commands:
        log.info("device", command=command)


def _deletions(before: Iterable[Device], now: Iterable[Device]) -> set[Observation]:
    """The devices that had to be created again."""
    indexes = {device.name: device.index for device in now}
    again = {device.name for device in before if indexes.get(device.name) != device.index}
    return {(Cause.LINK_DELETED, name) for name in again}


def _place(underlay: Underlay) -> tuple[object, ...]:
    """Returns what is the same where people call it the same underlay."""
    return underlay.index, underlay.addresses, underlay.public_addresses


class ReleaseCall(Protocol):
    """What a change needs of a lease service."""

    async def release(self, name: str) -> None: ...  # noqa: D102 - see LeaseConnection


class NetworkChange:
    """The change that is pending for this node, and the configuration in force meanwhile (ADR 25).

    `before` is the configuration that an earlier process went by.
    """

    def __init__(
        self,
        node: str,
        connection: ReleaseCall,
        kernel: Actuator,
        journal: NodeJournal,
        route_protocol: int,
        before: NetworkConfig | None = None,
    ) -> None:
        self.move: PendingMove | None = None
        """The move that waits for an operator; None: there is none."""
        self._node = node
        self._connection = connection
        self._kernel = kernel
        self._journal = journal
        self._route_protocol = route_protocol
        self._before = before
        self._has_begun = False
        """A lease service has told its leases to this process: from now on nothing moves by itself."""
        self._released = ""
        """The lease that was given back because there were no pods, while the table still has it."""

    async def network(self, table: Table, held: Lease | None, *, is_told: bool) -> NetworkConfig:
        """The configuration in force from now on. `held` is the lease that we hold, as far as we know."""
        told = table.network
        assert told is not None  # noqa: S101 - a table is in force from its first network on
        own = self._own(table, held)
        if is_told and not self._has_begun:
            self._has_begun = True
            if own is not None and await self._moves_at_once(own, told):
                self._released, own = own.name, None
        self._note(pending_move(own, told) if own else None)
        self._before = in_force(told, own.cidrs if own else (), self._before)
        return self._before

    def _own(self, table: Table, held: Lease | None) -> Lease | None:
        """The lease that the table says is ours."""
        if self._released not in table.leases:
            self._released = ""  # if it is there later, an undone change has brought it back
        listed = table.leases.get(held.name) if held else None
        if listed is None or listed.node != self._node:
            ours = (lease for lease in table.leases.values() if lease.node == self._node and not lease.is_idle)
            listed = next(ours, None)
        return listed if listed is None or listed.name != self._released else None

    async def _moves_at_once(self, own: Lease, told: NetworkConfig) -> bool:
        """Whether, at a start, the pending change could be carried out because there are no pods; then
        it has begun.
        """
        move = pending_move(own, told)
        if move is None or not hands_out(told):
            return False
        try:
            routes = [route for family in FAMILIES for route in await self._kernel.routes(family.af)]
            strangers = [route for route in routes if route.protocol != self._route_protocol]
            if has_pods(own.cidrs, await links.interfaces(), strangers):
                return False
            await self._connection.release(own.name)
        except FlanneletteError as error:
            log.warning("a network change stays pending", lease=own.name, reason=str(error))
            return False
        log.warning("this node has no pods, so it moves to another subnet", lease=own.name, to=move.where)
        self._journal.note(Event(NodeEventKind.NETWORK, f"no pods here: the lease {own.name} is released", str(move)))
        return True

    def _note(self, move: PendingMove | None) -> None:
        if move == self.move:
            return
        self.move = move
        PENDING.set(1 if move else 0)
        if move is not None:
            log.warning(str(move), lease=move.lease)
            self._journal.note(Event(NodeEventKind.NETWORK, str(move), "lease service"))
        else:
            log.info("no network change is pending")
            self._journal.note(Event(NodeEventKind.NETWORK, "no network change is pending", "lease service"))


def has_pods(own: Iterable[Network], interfaces: Iterable[Interface], routes: Iterable[Route]) -> bool:
    """Whether pods of these subnets may be on this host: an interface has an address of one, or a route leads there.

    The first address of a subnet is that of the overlay's own device. `routes` are those that are not ours.
    """
    there = [address.ip for interface in interfaces for address in interface.addresses]
    used = {ip_network(ip) for ip in there} | {ip_network((route.dst, route.length)) for route in routes}
    return any(contains(cidr, each) and each != ip_network(cidr.network_address) for cidr in own for each in used)


async def claim(
    network: NetworkConfig,
    specs: Sequence[LinkSpec],
    settings: DataplaneSettings,
    kernel: Actuator,
    claims: Claims | None,
    former: Collection[Network],
) -> None:
    """Claims what a configuration needs, with these devices. `former` are subnets that are or were the node's own.

    Raises InvalidInput, naming both networks, where another one of the namespace is in its way; Unavailable.
    """
    ranges = [cidr for row in network.families for cidr in network.cidrs(row.family)]
    wanted = [NameClaim(MARK, str(settings.route_protocol)), *(NameClaim(RANGE, str(cidr)) for cidr in ranges)]
    wanted += [NameClaim(DEVICE, f"{spec.name} ({spec.attributes.identity()})") for spec in specs]
    tunnel = network.tunnel()
    if tunnel is not None and tunnel.protocol == UDP:
        ports = dict.fromkeys(tunnel.port_of(row.family.version) for row in network.families)
        wanted += [NameClaim(UDP_PORT, f"{port} {network.backend_type}") for port in ports]
    if claims is not None:
        claims.check(wanted)
    if settings.is_named and network.backend_type == "ipsec":
        raise InvalidInput(
            "backend ipsec is for the network without a name: charon and the kernel's policies are one for all"
        )
    if settings.network:  # what other networks have without a claim: of a process that has ended, or before a restart
        for spec in specs:
            await _require_own_device(spec, [*former, *ranges])
        for row in network.families:
            _require_own_routes(await kernel.routes(row.family.af), ranges, settings.route_protocol)
    if claims is not None:
        claims.take(wanted)


def keep_claims(devices: Iterable[Device], claims: Claims | None) -> None:
    """Gives back the claims of all devices but these."""
    if claims is not None:
        claims.keep_devices({device.name for device in devices})


def unclaimed(names: Iterable[str], claims: Claims | None) -> frozenset[str]:
    """Selects from these devices those that no other network has now, whoever made them."""
    return frozenset(names) - (claims.of_others(DEVICE) if claims else frozenset())


async def _require_own_device(spec: LinkSpec, ranges: Collection[Network]) -> None:
    """Raises InvalidInput for a device that is there with an address outside of these ranges."""
    link = await links.find_link(spec.name)
    for address in link.addresses if link else ():
        if not address.ip.is_link_local and not any(contains(cidr, address.network) for cidr in ranges):
            raise InvalidInput(
                f"{spec.name} ({spec.attributes.identity()}) has {address}, so it is of another network on this "
                "host: give this one another device (with vxlan: another VNI), or remove the other with "
                f"`ip link del {spec.name}`"
            )


def _require_own_routes(routes: Iterable[Route], ranges: Collection[Network], protocol: int) -> None:
    """Raises InvalidInput for a route into these ranges that has the mark of another network."""
    others = {ROUTE_PROTOCOL, *NAMED_PROTOCOLS} - {protocol}
    for route in routes:
        to = ip_network((route.dst, route.length)) if route.protocol in others else None
        if to is not None and any(contains(cidr, to) for cidr in ranges):
            raise InvalidInput(
                f"the route to {to} has protocol {route.protocol}, so it is of another network on this host: change "
                f"the range of one of them, or remove it with `ip route flush proto {route.protocol}`"
            )
