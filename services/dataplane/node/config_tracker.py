"""The overlay configuration in force, as the network configuration and the underlay change, and its devices."""

import time
from collections.abc import Collection, Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from services.core.errors import InvalidInput, Misconfigured, Unavailable
from services.core.family import Family, Network
from services.core.leases.lease import Lease
from services.core.leases.node_overrides import PublicIpOverrides
from services.core.network import NetworkConfig
from services.dataplane.backends.backend import Backends, NodeIdentity, NodeLinks
from services.dataplane.events.causes import Cause, Observation, Observations
from services.dataplane.events.describe import describe_device
from services.dataplane.events.journal import Event, EventKind, Journal
from services.dataplane.links.desired import Device
from services.dataplane.links.reconcile import find_leftovers, reconcile_devices, remove_devices
from services.dataplane.netlink.actuator import Actuator
from services.dataplane.netlink.objects import Route
from services.dataplane.node.overlay_config import (
    OverlayConfig,
    default_interface,
    is_default,
    is_underlay_unchanged,
    resolve_config,
)
from services.dataplane.settings import DataplaneSettings
from services.dataplane.underlay.connected_routes import ConnectedRoutes, connected_routes
from services.runtime.telemetry.logs import LogLimiter, get_logger

log = get_logger()

_VIRTUALBOX: Final = ip_address("10.0.2.15")
"""Of the first, NATed interface of every guest of VirtualBox."""


class ConfigTracker:
    """The last configuration that could be applied stays in force; `error` says why a newer one could not."""

    def __init__(
        self,
        settings: DataplaneSettings,
        node: str,
        kernel: Actuator,
        backends: Backends,
        journal: Journal,
        former: Iterable[Network] = (),
    ) -> None:
        self.config: OverlayConfig | None = None
        self.devices: Mapping[Family, Device] = {}
        self.connected = ConnectedRoutes()
        """At the last look."""
        self.error = ""
        self._settings = settings
        self._node = node
        self._kernel = kernel
        self._backends = backends
        self._journal = journal
        self._kept: tuple[OverlayConfig, NodeIdentity] | None = None
        """What the devices were brought into line with, last time."""
        self._asked: NetworkConfig | None = None
        self._chosen: PublicIpOverrides = ()
        self._is_overtaken = False
        """The default route goes out of another interface now."""
        self._left: set[str] = set()
        """Names of devices that an earlier configuration needed."""
        self._has_looked_around = False
        """For what an earlier process has left."""
        self._former = frozenset(former)
        """Subnets that are or were our own."""
        self._may_log = LogLimiter()

    async def update(self, network: NetworkConfig, chosen: PublicIpOverrides = (), *, look: bool) -> bool:
        """Whether there is a new configuration. With `look`, reads the underlay and retries what was refused.

        `chosen` is what operators have chosen for this node in the store.

        Raises Misconfigured when this node cannot carry its first network, Unavailable when it cannot yet.
        """
        config, is_news = self.config, network != self._asked
        is_asked_anew = is_news or chosen != self._chosen
        self._asked, self._chosen = network, chosen
        if config is not None and (config.network, config.chosen) == (network, chosen):
            is_shaken = look and (self._is_overtaken or not await is_underlay_unchanged(config))
            if not is_shaken:
                self.error = ""
                return False
        if not is_asked_anew and not look:
            return False
        if is_news:
            _warn(network.warnings)
        try:
            found = await resolve_config(network, self._settings, self._kernel, self._backends, self._node, chosen)
        except (InvalidInput, Unavailable) as error:
            if config is None and isinstance(error, Misconfigured | Unavailable):
                raise
            if str(error) != self.error:
                log.warning("the network configuration cannot be applied", reason=str(error))
                self._journal.note(
                    Event(EventKind.FAILURE, "the network configuration cannot be applied", str(error))
                )
            self.error = str(error)
            return False
        _warn(found.warnings if is_news or config is None else set(found.warnings).difference(config.warnings))
        self.error, self._is_overtaken = "", False
        if found == config:
            return False
        self.config = found
        if config is None or (config.network, config.backend.way) != (found.network, found.backend.way):
            self._journal.note(
                Event(EventKind.NETWORK, f"network configuration: {_network_words(found)}", "lease service")
            )
        if config is not None and _place(config) == _place(found):
            return True
        self._journal.note(
            Event(EventKind.UNDERLAY, f"underlay chosen: {_place_words(found)}", found.underlay.reason)
        )
        log.info(
            "underlay chosen",
            interface=found.underlay.name,
            addresses=[str(address) for address in found.underlay.addresses],
            reason=found.underlay.reason,
        )
        if _VIRTUALBOX in found.underlay.addresses:
            log.warning(
                f"every VirtualBox guest has the address {_VIRTUALBOX}, so that no other can reach this one by it: "
                "choose an interface with --iface",
                interface=found.underlay.name,
            )
        return True

    def default_route_moved(self, defaults: Iterable[Route]) -> bool:
        """Whether the default route, if it has told the underlay, is another now: then look again."""
        config = self.config
        if config is None or config.default_index is None:
            return False
        now = default_interface(filter(is_default, defaults), config.families)
        self._is_overtaken = now is not None and now != config.default_index
        return self._is_overtaken

    async def read_connected_routes(self) -> ConnectedRoutes:
        """Notes which addresses are neighbours now, where the backend asks for it. Raises Unavailable."""
        config = self.config
        if config is None or not config.backend.follows_routes:
            self.connected = ConnectedRoutes()
        else:
            routes = [route for family in config.families for route in await self._kernel.routes(family.af)]
            strangers = (route for route in routes if route.protocol != self._settings.route_protocol)
            self.connected = connected_routes(strangers, config.underlay.index)
        return self.connected

    def links(self, config: OverlayConfig) -> NodeLinks:
        """What the objects of a peer refer to."""
        networks = tuple(cidr for family in config.families for cidr in config.network.cidrs(family))
        return NodeLinks(config.underlay, self.devices, self._settings.route_protocol, self.connected, networks)

    def identity(self, own: Lease | None, published: Lease | None, cached: Lease | None) -> NodeIdentity:
        """What the devices shall say of this node."""
        return NodeIdentity(self._node, own, published, cached, self._former)

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
        desired = self.config.devices(identity)
        if not self._has_looked_around:
            wanted = {each.name for each in desired}
            protocol, kinds = self._settings.route_protocol, self._backends.link_kinds
            self._left |= await find_leftovers(self._kernel, protocol, wanted, self._former, kinds)
            self._has_looked_around = True
        is_repair, before = self._kept == (self.config, identity), self.devices
        result = await reconcile_devices(desired, before, self._left)
        deleted = Observations()
        if result.error is None:
            self.devices, self._kept = result.devices, (self.config, identity)
            if is_repair:
                found = _deletions(before, self.devices) - observed.counts.keys()
                deleted = Observations(dict.fromkeys(found, 1))
        known = observed + deleted
        for name, steps in result.done.items():
            commands = tuple(step.command for step in steps)
            # What fails is tried again each second.
            if commands and (result.error is None or self._may_log(commands)):
                seconds = time.monotonic() - (observed.since if is_repair and observed.since else started)
                self._journal.note(describe_device(name, steps, known if is_repair else None, seconds))
                if not is_repair:  # the journal logs repairs
                    _tell(commands)
        if result.error is not None:
            raise result.error
        return deleted

    async def remove_stale(self) -> None:
        """Removes the devices of earlier grounds. Call it once the peers are reached without them."""
        left = self._left - {device.name for device in self.devices.values()}
        if left:
            await self._remove(left, "an earlier network configuration or an earlier process needed it")
        self._left.clear()

    async def remove_all(self, *, dry_run: bool) -> list[str]:
        """Removes every device; returns the commands."""
        names = self._left | {device.name for device in self.devices.values()}
        if dry_run:
            steps, _ = await remove_devices(sorted(names), dry_run=True)
            return [step.command for step in steps]
        commands = await self._remove(names, "an operator")
        self.devices, self._kept = {}, None
        self._is_overtaken = True  # so that the backend is prepared again
        self._left.clear()
        return commands

    async def _remove(self, names: Collection[str], cause: str) -> list[str]:
        """Removes devices and tells of each that is gone, whatever becomes of the next. Raises Unavailable."""
        _, outcome = await remove_devices(sorted(names))
        commands = [step.command for step in outcome.done]
        _tell(commands)
        for command in commands:
            self._journal.note(Event(EventKind.DEVICE, f"device removed: {command}", cause))
        if outcome.error is not None:
            raise outcome.error
        return commands


def _deletions(before: Mapping[Family, Device], now: Mapping[Family, Device]) -> set[Observation]:
    """The devices that had to be created again."""
    again = {device.name for family, device in before.items() if device.index != now[family].index}
    return {(Cause.LINK_DELETED, name) for name in again}


def _tell(commands: Iterable[str]) -> None:
    for command in commands:
        log.info("device", command=command)


def _place(config: OverlayConfig) -> tuple[object, ...]:
    """What people call the underlay."""
    return config.underlay.index, config.underlay.addresses, config.underlay.public_addresses


def _network_words(config: OverlayConfig) -> str:
    words = [*(str(n.cidr) for n in config.network.families), config.network.backend_type]
    return ", ".join([*words, config.backend.way] if config.backend.way else words)


def _place_words(config: OverlayConfig) -> str:
    addresses = ", ".join(map(str, config.underlay.addresses))
    return f"{config.underlay.name}, {addresses}, mtu {config.underlay.mtu}"


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        log.warning("network configuration", warning=warning)
