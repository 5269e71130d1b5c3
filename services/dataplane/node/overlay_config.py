"""The overlay configuration in force: backend, address families and underlay interface."""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from ipaddress import ip_address

from services.core.errors import InvalidInput, Misconfigured, Unavailable
from services.core.family import Family
from services.core.leases.node_overrides import PublicIpOverrides
from services.core.network import NetworkConfig, contains
from services.core.special_addresses import never_routed
from services.dataplane.backends.backend import Backend, Backends, NodeIdentity
from services.dataplane.links import actual as links
from services.dataplane.links.desired import LinkSpec, own_address
from services.dataplane.links.ethtool import wanted_offload
from services.dataplane.netlink.actuator import Actuator
from services.dataplane.netlink.objects import RTN_UNICAST, Route
from services.dataplane.peers.validation import OperatorLimits
from services.dataplane.settings import DataplaneSettings
from services.dataplane.underlay.selection import Underlay, choose_underlay, is_still, with_chosen


@dataclass(frozen=True, slots=True)
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
    """Of the devices; None: as it is."""
    chosen: PublicIpOverrides = ()
    """What operators have chosen for this node in the store."""

    def devices(self, identity: NodeIdentity) -> list[LinkSpec]:
        """The device that each family needs, where it needs one. Raises InvalidInput, Misconfigured."""
        found = []
        for family in self.families:
            spec, network = self.backend.link(family, self.underlay, identity), self.network.family(family)
            if spec is not None and network is not None:
                former = frozenset(map(own_address, identity.former))
                offload = self.checksum_offload if spec.attributes.offloads_checksums else None
                offload = spec.checksum_offload if offload is None else offload
                found.append(replace(spec, network=network.cidr, former=former, checksum_offload=offload))
        return found


async def resolve_config(
    network: NetworkConfig,
    settings: DataplaneSettings,
    kernel: Actuator,
    backends: Backends,
    node: str,
    chosen: PublicIpOverrides = (),
) -> OverlayConfig:
    """Raises InvalidInput for a configuration we cannot carry, Misconfigured when no interface is found.

    Where something is `chosen` for this node in the store, in a family of the network, it is Unavailable instead:
    that can be corrected there.
    """
    versions = {n.family.version for n in network.families}
    heeded = [each for each in chosen if each.version in versions]
    try:
        return await _ground(network, settings, kernel, backends, node, chosen)
    except Misconfigured as error:
        if not heeded:
            raise
        said = ", ".join(f"{each.source} is {each.text}" for each in heeded)
        raise Unavailable(f"{error}; {said}") from None


async def _ground(
    network: NetworkConfig,
    settings: DataplaneSettings,
    kernel: Actuator,
    backends: Backends,
    node: str,
    chosen: PublicIpOverrides,
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
    )
    offload = wanted_offload(settings.checksum_offload, os.uname().release)
    warnings = tuple(backend.warnings(underlay))
    config = OverlayConfig(network, backend, families, underlay, warnings, default_index, offload, chosen)
    config.devices(NodeIdentity(node))  # so that a public address, say, that the backend cannot use is refused here
    return config


def _require_room(network: NetworkConfig, limits: OperatorLimits) -> None:
    """Raises InvalidInput when nothing of a network is allowed here, or a part of it is never routed."""
    for cidr in (n.cidr for n in network.families):
        if block := never_routed(cidr):
            raise InvalidInput(
                f"the network {cidr} covers {block.network}, where each address is {block.words}: narrow the network"
            )
    for cidr in (n.cidr for n in network.families if limits.allowed):
        if not any(contains(cidr, each) or contains(each, cidr) for each in limits.allowed):
            raise InvalidInput(
                f"the network {cidr} lies outside what --allowed-network allows here, "
                f"{', '.join(map(str, limits.allowed))}: correct one of them"
            )


async def is_underlay_unchanged(config: OverlayConfig) -> bool:
    """Whether the underlay is still as it was when it was chosen: the same interface, MTU and addresses."""
    return is_still(config.underlay, await links.interface(config.underlay.name))


def default_interface(defaults: Iterable[Route], families: Iterable[Family]) -> int | None:
    """Of the first family that has a default route: the interface of the one with the lowest metric."""
    defaults = list(defaults)
    for family in families:
        of_family = [route for route in defaults if route.family == family.af]
        if of_family:
            return min(of_family, key=lambda route: route.metric).ifindex
    return None


def is_default(route: Route) -> bool:
    """Whether it is a usable default route."""
    return route.length == 0 and route.route_type == RTN_UNICAST and route.ifindex != 0
