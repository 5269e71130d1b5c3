"""What log and journal say of the configuration in force and of the underlay."""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.events.causes import Cause, Observation
from flannelette.services.dataplane.events.journal import Event, EventKind, Journal
from flannelette.services.dataplane.links.desired import Device
from flannelette.services.dataplane.underlay.selection import Underlay
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_VIRTUALBOX: Final = ip_address("10.0.2.15")
"""Of the first, NATed interface of every guest of VirtualBox."""


def tell_network(journal: Journal, network: NetworkConfig, way: str) -> None:
    """A configuration is in force; `way`: see Backend."""
    words = ", ".join(filter(None, [*(str(n.cidr) for n in network.families), network.backend_type, way]))
    journal.note(Event(EventKind.NETWORK, f"network configuration: {words}", "lease service"))


def tell_refusal(journal: Journal, reason: str) -> None:
    """A configuration is not, and the last one stays."""
    what = "the network configuration cannot be applied"
    log.warning(what, reason=reason)
    journal.note(Event(EventKind.FAILURE, what, reason))


def tell_warnings(warnings: Iterable[str]) -> None:
    """What a configuration says and this version does otherwise."""
    for warning in warnings:
        log.warning("network configuration", warning=warning)


def is_same_place(underlay: Underlay, other: Underlay) -> bool:
    """Whether people call it the same underlay."""
    return _place(underlay) == _place(other)


def tell_underlay(journal: Journal, underlay: Underlay) -> None:
    """An underlay is chosen."""
    words = f"{underlay.name}, {', '.join(map(str, underlay.addresses))}, mtu {underlay.mtu}"
    journal.note(Event(EventKind.UNDERLAY, f"underlay chosen: {words}", underlay.reason))
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


def tell_commands(commands: Iterable[str]) -> None:
    """What was done to devices."""
    for command in commands:
        log.info("device", command=command)


def deletions(before: Iterable[Device], now: Iterable[Device]) -> set[Observation]:
    """The devices that had to be created again."""
    indexes = {device.name: device.index for device in now}
    again = {device.name for device in before if indexes.get(device.name) != device.index}
    return {(Cause.LINK_DELETED, name) for name in again}


def _place(underlay: Underlay) -> tuple[object, ...]:
    return underlay.index, underlay.addresses, underlay.public_addresses
