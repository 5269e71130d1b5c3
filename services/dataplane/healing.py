"""Hears what somebody else does to our objects, and has everything compared again."""

import asyncio
from collections.abc import Callable, Hashable, Set
from typing import Final

from services.dataplane.dataplane import Dataplane
from services.dataplane.netlink.monitor import Change, Monitor, Subject
from services.dataplane.netlink.objects import ROUTE

_SETTLE_SECONDS: Final = 0.05
"""One fault is many notifications (a link that goes down takes every route along): they end in one comparison."""


async def heal(dataplane: Dataplane, monitor: Monitor, own_port: int) -> None:
    """For ever. Reads on while a fault settles, so that a burst is one comparison and the queue stays short."""
    loop = asyncio.get_running_loop()
    pending = Pending()
    async for changes in monitor.changes():
        if pending.take(changes, concern(dataplane, own_port)):
            loop.call_later(_SETTLE_SECONDS, lambda: pending.settle(dataplane))


class Pending:
    """What was heard and not yet acted upon."""

    def __init__(self) -> None:
        self._sure = False
        self._gone: set[Hashable] = set()

    def take(self, changes: list[Change], concerns: Callable[[Change], bool]) -> bool:
        """Notes what concerns us; True: it is the first, so `settle` is due soon."""
        was_empty = not self._sure and not self._gone
        for change in changes:
            if concerns(change):
                if change.slot is None:
                    self._sure = True
                else:
                    self._gone.add(change.slot)
        return was_empty and (self._sure or bool(self._gone))

    def settle(self, dataplane: Dataplane) -> None:
        """Has everything compared, unless all that is gone was taken away by ourselves."""
        programmed = dataplane.overlay.reconciler.programmed
        if self._sure or not self._gone.isdisjoint(item.slot for item in programmed if item.kind != ROUTE):
            dataplane.audit()
        self._sure = False
        self._gone.clear()


def concern(dataplane: Dataplane, own_port: int) -> Callable[[Change], bool]:
    """Whether a change may have touched something of ours, as things stand now.

    A change of ours is known by our socket's port id, but for neighbours and forwarding entries that go (see
    `Change.port`): they count later, if we then still believe them to be there.
    """
    ground = dataplane.footing.ground
    devices = frozenset(device.index for device in dataplane.footing.devices.values())
    underlay = frozenset([ground.underlay.index]) if ground else frozenset[int]()
    protocol = dataplane.settings.route_protocol
    routes = underlay if ground and ground.backend.follows_routes else frozenset[int]()
    is_lost = ground is not None and dataplane.footing.trouble != ""  # any interface may be the one we wait for

    def is_concern(change: Change) -> bool:
        if change.port == own_port:
            return False
        if _touches(change, devices, underlay, protocol):
            return True
        is_way = change.subject is Subject.ROUTE and change.ifindex in routes
        return is_way or (is_lost and change.subject in _PLACES)

    return is_concern


_PLACES: Final = (Subject.LINK, Subject.ADDRESS)


def _touches(change: Change, devices: Set[int], underlay: Set[int], protocol: int) -> bool:
    match change.subject:
        case Subject.OVERRUN:
            return True
        case Subject.LINK | Subject.ADDRESS:
            return change.ifindex in devices or change.ifindex in underlay
        case Subject.ROUTE:
            return change.protocol == protocol or change.ifindex in devices or change.is_default
        case Subject.NEIGHBOUR | Subject.FDB_ENTRY:
            return change.gone and change.ifindex in devices
