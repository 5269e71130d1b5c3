"""Follows the network configuration and the underlay: which ground is in force, and which devices stand on it."""

import time
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Final

from services.core.choices import Chosen
from services.core.errors import InvalidInput, Misconfigured, Unavailable
from services.core.family import Family, Network
from services.core.lease import Lease
from services.core.network import NetworkConfig
from services.dataplane.backends.backend import Device, Links
from services.dataplane.causes import Cause, Heard
from services.dataplane.devices import LinkStep
from services.dataplane.ground import Ground, default_interface, find_ground, is_default, is_firm
from services.dataplane.journal import Event, Journal, Kind
from services.dataplane.keeper import Done, Identity, Search, keep_devices, removal
from services.dataplane.leftovers import find_leftovers
from services.dataplane.netlink import links
from services.dataplane.netlink.objects import Route
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.news import device_news
from services.dataplane.on_link import OnLink, on_link
from services.dataplane.settings import DataplaneSettings
from services.runtime.logs import Rarely, get_logger

log = get_logger()

_VIRTUALBOX: Final = ip_address("10.0.2.15")
"""Of the first, NATed interface of every guest of VirtualBox."""


class Footing:
    """The last ground that could be found stays in force; `trouble` says why a newer one could not."""

    def __init__(
        self,
        settings: DataplaneSettings,
        node: str,
        kernel: KernelSocket,
        journal: Journal,
        former: Iterable[Network] = (),
    ) -> None:
        self.ground: Ground | None = None
        self.devices: Mapping[Family, Device] = {}
        self.on_link = OnLink()
        """At the last look."""
        self.trouble = ""
        self._settings = settings
        self._node = node
        self._kernel = kernel
        self._journal = journal
        self._kept: tuple[Ground, Identity] | None = None
        """What the devices were brought into line with, last time."""
        self._asked: NetworkConfig | None = None
        self._chosen: Chosen = ()
        self._is_overtaken = False
        """The default route goes out of another interface now."""
        self._left: set[str] = set()
        """Names of devices that an earlier ground needed."""
        self._has_looked_around = False
        """For what an earlier process has left."""
        self._former = frozenset(former)
        """Subnets that are or were our own."""
        self._is_news = Rarely()
        self._search = Search()

    async def follow(self, network: NetworkConfig, chosen: Chosen = (), *, look: bool) -> bool:
        """Whether there is a new ground. With `look` the underlay is looked at, and what was refused tried again.

        `chosen` is what operators have chosen for this node in the store.

        Raises Misconfigured when this node cannot carry its first network, Unavailable when it cannot yet.
        """
        ground, is_news = self.ground, network != self._asked
        is_asked_anew = is_news or chosen != self._chosen
        self._asked, self._chosen = network, chosen
        if ground is not None and (ground.network, ground.chosen) == (network, chosen):
            is_shaken = look and (self._is_overtaken or not await is_firm(ground))
            if not is_shaken:
                self.trouble = ""
                return False
        if not is_asked_anew and not look:
            return False
        if is_news:
            _warn(network.warnings)
        try:
            found = await find_ground(network, self._settings, self._kernel, self._node, chosen)
        except (InvalidInput, Unavailable) as error:
            if ground is None and isinstance(error, Misconfigured | Unavailable):
                raise
            if str(error) != self.trouble:
                log.warning("the network cannot be carried", reason=str(error))
                self._journal.note(Event(Kind.FAILURE, "the network cannot be carried", str(error)))
            self.trouble = str(error)
            return False
        _warn(found.warnings if is_news or ground is None else set(found.warnings).difference(ground.warnings))
        self.trouble, self._is_overtaken = "", False
        if found == ground:
            return False
        self.ground = found
        if ground is None or ground.network != found.network:
            self._journal.note(
                Event(Kind.NETWORK, f"network configuration: {_network_words(network)}", "lease service")
            )
        if ground is not None and _place(ground) == _place(found):
            return True
        self._journal.note(Event(Kind.UNDERLAY, f"underlay chosen: {_place_words(found)}", found.underlay.reason))
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

    def doubts(self, defaults: Iterable[Route]) -> bool:
        """Whether the default route, if it has told the underlay, is another now: then look again."""
        ground = self.ground
        if ground is None or ground.default_index is None:
            return False
        now = default_interface(filter(is_default, defaults), ground.families)
        self._is_overtaken = now is not None and now != ground.default_index
        return self._is_overtaken

    async def look_at_routes(self) -> OnLink:
        """Notes which addresses are neighbours now, where the backend asks for it. Raises Unavailable."""
        ground = self.ground
        if ground is None or not ground.backend.follows_routes:
            self.on_link = OnLink()
        else:
            routes = [route for family in ground.families for route in await self._kernel.routes(family.af)]
            strangers = (route for route in routes if route.protocol != self._settings.route_protocol)
            self.on_link = on_link(strangers, ground.underlay.index)
        return self.on_link

    def links(self, ground: Ground) -> Links:
        """What the objects of a peer refer to."""
        return Links(ground.underlay, self.devices, self._settings.route_protocol, self.on_link)

    def identity(self, own: Lease | None, published: Lease | None, remembered: Lease | None) -> Identity:
        """What the devices shall say of this node."""
        return Identity(self._node, own, published, remembered, self._former)

    async def keep(self, own: Lease | None, published: Lease | None, remembered: Lease | None, heard: Heard) -> None:
        """Brings the devices into line, see keep_devices. Raises Misconfigured, Unavailable.

        What was `heard` of the kernel explains what had to be repaired. That a device is gone is heard with this, for
        its notification may be the last of many.
        """
        started = time.monotonic()
        assert self.ground is not None  # noqa: S101 - there is something to keep only on some ground
        self._left |= {device.name for device in self.devices.values()}
        if not self._has_looked_around:
            wanted = {spec.name for _, spec in self.ground.devices(self._node)}
            protocol = self._settings.route_protocol
            self._left |= await find_leftovers(self._kernel, protocol, wanted, self._former)
            self._has_looked_around = True
        if own is not None:
            self._former |= {subnet.cidr for subnet in own.subnets}
        identity = self.identity(own, published, remembered)
        is_repair, done = self._kept == (self.ground, identity), Done()
        before, is_whole = self.devices, False
        try:
            self.devices = await keep_devices(self.ground, identity, before, done=done, search=self._search)
            self._kept, is_whole = (self.ground, identity), True
        finally:
            if is_repair:
                heard.add(_deletions(before, self.devices, heard))
            for name, steps in done.items():
                commands = tuple(step.command for step in steps)
                if commands and (is_whole or self._is_news(commands)):  # what fails is tried again each second
                    seconds = time.monotonic() - (heard.since if is_repair and heard.since else started)
                    self._journal.note(device_news(name, steps, heard if is_repair else None, seconds))
                    if not is_repair:  # of those the journal tells
                        _tell(commands)

    async def leave(self) -> None:
        """Removes the devices of earlier grounds. Call it once the peers are reached without them."""
        left = self._left - {device.name for device in self.devices.values()}
        if left:
            cause = "an earlier network configuration or an earlier process needed it"
            await self._remove(await removal(sorted(left)), cause)
        self._left.clear()

    async def clear(self, *, dry_run: bool) -> list[str]:
        """Removes every device; returns the commands."""
        names = self._left | {device.name for device in self.devices.values()}
        steps = await removal(sorted(names))
        if not dry_run:
            await self._remove(steps, "an operator")
            self.devices, self._kept = {}, None
            self._left.clear()
        return [step.command for step in steps]

    async def _remove(self, steps: tuple[LinkStep, ...], cause: str) -> None:
        """Each is told when it is done, whatever becomes of the next."""

        def tell(step: LinkStep) -> None:
            _tell([step.command])
            self._journal.note(Event(Kind.DEVICE, f"device removed: {step.command}", cause))

        await links.carry_out(steps, tell)


def _deletions(before: Mapping[Family, Device], now: Mapping[Family, Device], heard: Heard) -> Heard:
    """Of the devices that had to be made again, but for those that were heard of."""
    again = {device.name for family, device in before.items() if device.index != now[family].index}
    return Heard({(Cause.LINK_DELETED, name) for name in again} - heard.signs.keys())


def _tell(commands: Iterable[str]) -> None:
    for command in commands:
        log.info("device", command=command)


def _place(ground: Ground) -> tuple[object, ...]:
    """What people call the underlay."""
    return ground.underlay.index, ground.underlay.addresses, ground.underlay.public_addresses


def _network_words(network: NetworkConfig) -> str:
    return f"{', '.join(str(n.cidr) for n in network.families)}, {network.backend_type}"


def _place_words(ground: Ground) -> str:
    addresses = ", ".join(map(str, ground.underlay.addresses))
    return f"{ground.underlay.name}, {addresses}, mtu {ground.underlay.mtu}"


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        log.warning("network configuration", warning=warning)
