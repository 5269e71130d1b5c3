"""Overlay configurations: the one in force, with backend, families and underlay, and earlier ones (ADR 35)."""

import os
import struct
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.addresses import network_refusal
from flannelette.services.core.errors import FlanneletteError, InvalidInput, Misconfigured, Unavailable
from flannelette.services.core.family import FAMILIES, IPV6, Address, Family
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.table import PublicIpOverrides
from flannelette.services.core.network import NetworkConfig, contains
from flannelette.services.dataplane.backends.backend import Backend, Backends, NodeIdentity, NoRoom
from flannelette.services.dataplane.events import Event, NodeEventKind, NodeJournal
from flannelette.services.dataplane.links import actual as links
from flannelette.services.dataplane.links.interfaces import Device, LinkSpec, own_address
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.objects import RTN_UNICAST, Route
from flannelette.services.dataplane.netlink.uapi import RTA_MULTIPATH, attributes
from flannelette.services.dataplane.peers import OperatorLimits
from flannelette.services.dataplane.settings import DataplaneSettings, wanted_offload
from flannelette.services.dataplane.underlay import (
    ConnectedRoutes,
    Underlay,
    choose_underlay,
    connected_routes,
    is_still,
    with_chosen,
)
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_NEXT_HOP: Final = struct.Struct("=HBBi")
"""struct rtnexthop: length, flags, weight and device."""
_GRACE: Final = 20.0
"""Seconds from the last lease that says an earlier backend until its overlay goes: every node has programmed it."""


@frozen
class OverlayConfig:
    """Chosen once for a configuration."""

    network: NetworkConfig
    backend: Backend
    families: tuple[Family, ...]
    underlay: Underlay
    warnings: tuple[str, ...] = ()
    """What the configuration says and this version does otherwise."""
    default_index: int | None = None
    """Interface of the default route, if that has decided; None: flags have."""
    checksum_offload: bool | None = None
    """Whether the devices get checksum offload; None: as it is."""
    chosen: PublicIpOverrides = ()
    """What operators have chosen for this node in the store."""
    lacking: Mapping[Family, str] = field(default_factory=dict)
    """See NodeLinks."""

    def devices(self, identity: NodeIdentity) -> list[LinkSpec]:
        """The device that each family needs, where it needs one. Raises InvalidInput, Misconfigured.

        Without those of families that are `lacking`.
        """
        found = []
        for family in self.families:
            if family in self.lacking:
                continue
            spec, network = self.backend.link(family, self.underlay, identity), self.network.family(family)
            if spec is not None and network is not None:
                former = frozenset(map(own_address, identity.former))
                offload = self.checksum_offload if spec.attributes.offloads_checksums else None
                offload = spec.checksum_offload if offload is None else offload
                found.append(replace(spec, network=network.cidr, former=former, checksum_offload=offload))
        return found


@frozen
class EarlierOverlay:
    """A configuration that was in force, with its devices."""

    config: OverlayConfig
    devices: Mapping[Family, Device] = field(default_factory=dict)
    unused_since: float | None = None
    """When it was first seen that no lease says it, on a clock; None: some lease does."""

    def name(self, among: Iterable[OverlayConfig]) -> str:
        """Returns the name of the overlay in messages, which no other of these configurations has."""
        kind = self.config.network.backend_type
        is_alone = sum(each.network.backend_type == kind for each in among) == 1
        return kind if is_alone else f"{kind} {self.config.backend.variant}"

    def seen(self, moment: float, *, is_used: bool) -> "EarlierOverlay":
        """Returns the overlay as it is after a look at all leases: whether one says it."""
        first = None if is_used else moment if self.unused_since is None else self.unused_since
        return self if first == self.unused_since else replace(self, unused_since=first)


async def resolve_config(
    network: NetworkConfig,
    settings: DataplaneSettings,
    kernel: Actuator,
    backends: Backends,
    node: str,
    chosen: PublicIpOverrides = (),
    kept: Sequence[Address] = (),
) -> OverlayConfig:
    """Raises InvalidInput for a configuration we cannot carry, Misconfigured when no interface is found.

    Where something is `chosen` for this node in the store, in a family of the network, it is Unavailable instead:
    that can be corrected there.
    """
    versions = {n.family.version for n in network.families}
    heeded = [each for each in chosen if each.version in versions]
    try:
        return await _ground(network, settings, kernel, backends, node, chosen, kept)
    except Misconfigured as error:
        if not heeded:
            raise
        said = ", ".join(f"{each.source} is {each.text}" for each in heeded)
        raise Unavailable(f"{error}; {said}") from None


async def resolve_earlier(
    networks: Iterable[NetworkConfig],
    settings: DataplaneSettings,
    kernel: Actuator,
    backends: Backends,
    node: str,
    chosen: PublicIpOverrides,
    kept: Sequence[Address] = (),
) -> list[EarlierOverlay]:
    """Resolves the overlays of an earlier process; one that cannot be resolved is given up, with a warning."""
    found = []
    for network in networks:
        try:
            config = await resolve_config(network, settings, kernel, backends, node, chosen, kept)
            found.append(EarlierOverlay(config))
        except FlanneletteError as error:
            log.warning("an earlier backend is given up", backend=network.backend_type, reason=str(error))
    return found


async def _ground(
    network: NetworkConfig,
    settings: DataplaneSettings,
    kernel: Actuator,
    backends: Backends,
    node: str,
    chosen: PublicIpOverrides,
    kept: Sequence[Address],
) -> OverlayConfig:
    families = tuple(n.family for n in network.families)
    _require_room(network, settings.limits())
    backend = backends.make(network).on_node(settings.node_files(os.environ))
    backend = await backend.prepare(network, backends.programs)
    choice = settings.interface_choice()
    if backend.ignores_public_ip:
        choice = replace(choice, public_addresses=())
    choice = with_chosen(choice, chosen, families)
    defaults = [r for f in families if choice.is_open for r in await kernel.routes(f.af) if is_default(r)]
    default_index = default_interface(defaults, families)
    underlay = choose_underlay(
        await links.interfaces(),
        choice,
        families,
        reach=await links.route_to(ip_address(choice.can_reach)) if choice.can_reach else None,
        default_index=default_index,
        kept=kept,
        dispensable=() if backend.joins_families or families != FAMILIES else (IPV6,),
    )
    offload = wanted_offload(settings.checksum_offload, os.uname().release)
    warnings = tuple(backend.warnings(underlay))
    config = OverlayConfig(network, backend, families, underlay, warnings, default_index, offload, chosen)
    if lacking := dict(underlay.lacking) or _without_room(config, node):
        told = (f"{reason}: until then IPv4 alone is carried" for reason in lacking.values())
        config = replace(config, lacking=lacking, warnings=(*warnings, *told))
    config.devices(NodeIdentity(node))  # so that a public address, say, that the backend cannot use is refused here
    return config


def _without_room(config: OverlayConfig, node: str) -> dict[Family, str]:
    """Why IPv6 gets no device beside IPv4, which needs less; empty: it gets one."""
    if config.families != FAMILIES:
        return {}
    try:
        config.backend.link(IPV6, config.underlay, NodeIdentity(node))
    except NoRoom as error:
        return {IPV6: str(error)}
    return {}


def require_families(found: OverlayConfig, before: OverlayConfig) -> None:
    """Raises Unavailable where the node loses the address of a family that it carries: it may be back in a moment."""
    for family, reason in found.underlay.lacking:
        if before.underlay.address(family) is not None:
            raise Unavailable(reason)


def _require_room(network: NetworkConfig, limits: OperatorLimits) -> None:
    """Raises InvalidInput when nothing of a network is allowed here, or a part of it is never routed."""
    for cidr in (n.cidr for n in network.families):
        if refusal := network_refusal(cidr):
            raise InvalidInput(refusal)
    for cidr in (n.cidr for n in network.families if limits.allowed):
        if not any(contains(cidr, each) or contains(each, cidr) for each in limits.allowed):
            raise InvalidInput(
                f"the network {cidr} lies outside what --allowed-network allows here, "
                f"{', '.join(map(str, limits.allowed))}: correct one of them"
            )


async def is_underlay_unchanged(config: OverlayConfig, kept: Sequence[Address] = ()) -> bool:
    """Whether the underlay is still as it was when it was chosen: the same interface, MTU and addresses.

    `kept` are the addresses that the node is known by, the most wanted first.
    """
    if config.underlay.elsewhere:
        return is_still(config.underlay, await links.interfaces(), kept)
    interface = await links.interface(config.underlay.name)
    return is_still(config.underlay, [interface] if interface else [], kept)


async def read_connected(kernel: Actuator, config: OverlayConfig, route_protocol: int) -> ConnectedRoutes:
    """Reads which addresses are neighbours now, by routes that are not ours. Raises Unavailable."""
    routes = [route for family in config.families for route in await kernel.routes(family.af)]
    return connected_routes((r for r in routes if r.protocol != route_protocol), config.underlay.index)


def default_interface(defaults: Iterable[Route], families: Iterable[Family]) -> int | None:
    """Returns the interface of the default route with the lowest metric, of the first family that has one."""
    defaults = list(defaults)
    for family in families:
        of_family = [route for route in defaults if route.family == family.af]
        if of_family:
            return device_of(min(of_family, key=lambda route: route.metric))
    return None


def device_of(route: Route) -> int:
    """The interface that a route leaves by, the first one of a route over several (ECMP); 0: none."""
    hops = dict(attributes(route.rest)).get(RTA_MULTIPATH, b"") if not route.ifindex else b""
    return route.ifindex or (_NEXT_HOP.unpack_from(hops)[3] if len(hops) >= _NEXT_HOP.size else 0)


def is_default(route: Route) -> bool:
    """Whether it is a usable default route."""
    return route.length == 0 and route.route_type == RTN_UNICAST and device_of(route) != 0


class EarlierOverlays:
    """The earlier overlays that are in use, the last one first. Methods that give some up return the names of their
    devices.
    """

    def __init__(self, node: str, journal: NodeJournal, clock: Callable[[], float] = time.monotonic) -> None:
        self.overlays: tuple[EarlierOverlay, ...] = ()
        self._node = node
        self._journal = journal
        self._clock = clock

    @property
    def is_waiting(self) -> bool:
        """Whether one will soon be given up."""
        return any(each.unused_since is not None for each in self.overlays)

    @property
    def networks(self) -> tuple[NetworkConfig, ...]:
        """The network configurations of the earlier overlays."""
        return tuple(each.config.network for each in self.overlays)

    def devices(self) -> Iterator[Device]:
        """Yields the devices of all earlier overlays."""
        return (device for each in self.overlays for device in each.devices.values())

    def keep(self, now: OverlayConfig, before: Iterable[EarlierOverlay]) -> None:
        """Takes those of `before` that can stay beside the configuration in force now."""
        self.overlays = kept_overlays(now, before, self._node)

    def note(self, each: EarlierOverlay, devices: Mapping[Family, Device], error: str) -> Set[str]:
        """Takes the devices that one has now, or gives it up for the error with which it cannot have them."""
        self.overlays = tuple(replace(e, devices=devices) if e is each else e for e in self.overlays)
        return self._give_up([e for e in self.overlays if e.config is each.config], error) if error else set()

    def retire(self, now: OverlayConfig, unused: Set[str]) -> Set[str] | None:
        """Gives up those that have been `unused` (by name) for long enough; None: there are none."""
        if not self.overlays:
            return None
        moment = self._clock()
        among = (now, *(each.config for each in self.overlays))
        self.overlays = tuple(each.seen(moment, is_used=each.name(among) not in unused) for each in self.overlays)
        gone = [e for e in self.overlays if e.unused_since is not None and moment - e.unused_since >= _GRACE]
        return self._give_up(gone, "no lease says it any more") if gone else None

    def forget(self) -> None:
        """An operator has removed them."""
        self.overlays = ()

    def _give_up(self, gone: Collection[EarlierOverlay], why: str) -> set[str]:
        self.overlays = tuple(each for each in self.overlays if each not in gone)
        for each in gone:
            what = f"backend {each.config.network.backend_type} of the configuration before is given up"
            log.info(what, reason=why)
            self._journal.note(Event(NodeEventKind.NETWORK, what, why))
        return {device.name for each in gone for device in each.devices.values()}


def kept_overlays(now: OverlayConfig, before: Iterable[EarlierOverlay], node: str) -> tuple[EarlierOverlay, ...]:
    """Selects from the overlays of `before`, the last one first, those that can stay beside the configuration in
    force now.

    Leases have to tell them apart, their devices must not be in each other's way, and the network is the same.
    """
    kept: list[EarlierOverlay] = []
    identity = NodeIdentity(node)
    marks, specs = {now.backend.lease_mark}, now.devices(identity)
    for each in before:
        config = each.config
        if _place_of(config) != _place_of(now):
            config = replace(config, underlay=now.underlay)
        try:
            its = config.devices(identity)
        except (InvalidInput, Misconfigured):
            continue
        is_apart = config.backend.lease_mark not in marks and not any(_clash(a, b) for a in its for b in specs)
        if is_apart and _cidrs(config) == _cidrs(now):
            kept.append(replace(each, config=config))
            marks.add(config.backend.lease_mark)
            specs += its
    return tuple(kept)


def _clash(one: LinkSpec, other: LinkSpec) -> bool:
    """Whether two devices cannot be there at once."""
    a, b = one.attributes, other.attributes
    return one.name == other.name or (a.kind == b.kind and a.excludes(b))


def _place_of(config: OverlayConfig) -> tuple[object, ...]:
    return config.underlay.index, config.underlay.addresses, config.underlay.mtu


def _cidrs(config: OverlayConfig) -> list[object]:
    return [each.cidr for each in config.network.families]
