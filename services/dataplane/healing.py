"""Hears what somebody else does to our objects, and has everything compared again."""

import asyncio
from collections.abc import Callable, Set
from typing import Final

from services.dataplane.dataplane import Dataplane
from services.dataplane.netlink.monitor import Change, Monitor, Subject

_SETTLE_SECONDS: Final = 0.05
"""One fault is many notifications (a link that goes down takes every route along): they end in one comparison."""


async def heal(dataplane: Dataplane, monitor: Monitor, own_port: int) -> None:
    """For ever. A change of ours is known by our socket's port id and is no reason to look again."""
    async for changes in monitor.changes():
        concerns = concern(dataplane, own_port)
        if any(concerns(change) for change in changes):
            await asyncio.sleep(_SETTLE_SECONDS)
            dataplane.audit()


def concern(dataplane: Dataplane, own_port: int) -> Callable[[Change], bool]:
    """Whether a change may have touched something of ours, as things stand now."""
    ground = dataplane.ground
    devices = frozenset(device.index for device in dataplane.devices.values())
    underlay = frozenset([ground.underlay.index]) if ground else frozenset[int]()
    protocol = dataplane.settings.route_protocol
    return lambda change: change.port != own_port and _touches(change, devices, underlay, protocol)


def _touches(change: Change, devices: Set[int], underlay: Set[int], protocol: int) -> bool:
    match change.subject:
        case Subject.OVERRUN:
            return True
        case Subject.LINK | Subject.ADDRESS:
            return change.ifindex in devices or change.ifindex in underlay
        case Subject.ROUTE:
            return change.protocol == protocol or change.ifindex in devices
        case Subject.NEIGHBOUR | Subject.FDB_ENTRY:
            # The kernel reports our own forwarding entries without our port id; only what goes can be missing.
            return change.gone and change.ifindex in devices
