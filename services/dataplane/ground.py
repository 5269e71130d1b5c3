"""What the dataplane stands on while the network configuration is the same: backend, families, underlay."""

from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import ip_address

import structlog

from services.core.family import Family
from services.core.network import NetworkConfig
from services.dataplane.backends import make_backend
from services.dataplane.backends.backend import Backend
from services.dataplane.netlink import links
from services.dataplane.netlink.objects import Route
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.netlink.uapi import RTN_UNICAST
from services.dataplane.underlay import InterfaceChoice, Underlay, choose_underlay

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ground:
    """Chosen once for a configuration."""

    network: NetworkConfig
    backend: Backend
    families: tuple[Family, ...]
    underlay: Underlay


async def find_ground(network: NetworkConfig, choice: InterfaceChoice, kernel: KernelSocket) -> Ground:
    """Raises InvalidInput for a configuration we cannot carry, Misconfigured when no interface is found."""
    backend, warnings = make_backend(network)
    for warning in (*network.warnings, *warnings):
        log.warning("network configuration", warning=warning)
    families = tuple(n.family for n in network.families)
    underlay = choose_underlay(
        await links.interfaces(),
        choice,
        families,
        reach=await links.route_to(ip_address(choice.can_reach)) if choice.can_reach else None,
        default_index=await _default_index(families, kernel),
    )
    log.info(
        "underlay chosen",
        interface=underlay.name,
        addresses=[str(a) for a in underlay.addresses],
        reason=underlay.reason,
    )
    return Ground(network, backend, families, underlay)


async def _default_index(families: Iterable[Family], kernel: KernelSocket) -> int | None:
    """Of the first family that has a default route: the interface of the one with the lowest metric."""
    for family in families:
        defaults = [r for r in await kernel.routes(family.af) if is_default(r)]
        if defaults:
            return min(defaults, key=lambda route: route.metric).ifindex
    return None


def is_default(route: Route) -> bool:
    """Whether it is a usable default route."""
    return route.length == 0 and route.route_type == RTN_UNICAST and route.ifindex != 0
