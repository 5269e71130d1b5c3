"""Hears what somebody else does to our objects, and has everything compared or looked at again."""

import asyncio
import math
import time
from collections.abc import Callable, Hashable, Set
from typing import Final, TypeAlias

from services.dataplane.backends.backend import Device
from services.dataplane.causes import Heard, Sign, cause_of
from services.dataplane.dataplane import Dataplane
from services.dataplane.netlink.monitor import Change, Monitor, Subject
from services.dataplane.netlink.objects import ROUTE, KernelObject
from services.dataplane.underlay import Underlay

_SETTLE_SECONDS: Final = 0.01
"""One fault is many notifications (a link that goes down takes every route along): they end in one comparison."""
_UNREST_SECONDS: Final = 0.05
"""The same right after another fault: who fights with us, or flushes ten thousand routes, gets 20 comparisons a
second and not 100."""
_QUIET_SECONDS: Final = 0.5
_MOST_READINGS: Final = 16
"""Of what waits, before a comparison is asked for: whoever tells more than that without an end is not waited for."""
_REST: Final = 5
"""So many times what the last comparison took goes by before the next: a fight costs a fifth of a core at most."""

Concern: TypeAlias = Callable[[Change], Sign | None]
"""What a change means to us; None: nothing."""


async def heal(dataplane: Dataplane, monitor: Monitor, own_port: int) -> None:
    """For ever. Reads on while a fault settles, so that a burst is one comparison and the queue stays short."""
    loop = asyncio.get_running_loop()
    pending, settled_at = Pending(), -math.inf

    def settle() -> None:
        nonlocal settled_at
        if dataplane.turn.locked():  # what it takes away is still believed to be there
            loop.call_later(_SETTLE_SECONDS, settle)
            return
        for _ in range(_MOST_READINGS):  # what we did in the last turn is told by now: it explains what came before
            told = monitor.waiting()
            pending.take(told, concern(dataplane, own_port))
            if not told:
                break
        pending.settle(dataplane)
        settled_at = loop.time()

    async for changes in monitor.changes():
        if any(_is_suspicious(dataplane, change) for change in changes):
            dataplane.suspicious.set()
        if pending.take(changes, concern(dataplane, own_port)):
            loop.call_later(pause(loop.time() - settled_at, dataplane.overlay.last_resync_cpu), settle)


def pause(since: float, cost: float) -> float:
    """Seconds until the next comparison, so many after the last one was asked for, which took `cost` of a core."""
    rest = _REST * cost
    if since > max(_QUIET_SECONDS, rest):
        return _SETTLE_SECONDS
    return max(_UNREST_SECONDS, rest - since)


class Pending:
    """What was heard and not yet acted upon."""

    def __init__(self) -> None:
        self._sure = Heard()
        self._entries: dict[Hashable, tuple[KernelObject | None, Sign]] = {}
        """By slot of neighbours and forwarding entries: what it holds since it was heard of, and the last sign."""

    def take(self, changes: list[Change], concerns: Concern) -> bool:
        """Notes what concerns us; True: it is the first, so `settle` is due soon."""
        was_empty = self._sure.since is None
        for change in changes:
            sign = concerns(change)
            if sign is not None:
                self._sure.since = self._sure.since or time.monotonic()
                if change.subject not in _ENTRIES:
                    self._sure.signs[sign] += 1
                elif change.slot is not None:
                    self._entries[change.slot] = None, sign
                else:
                    self._entries.update((item.slot, (item, sign)) for item in change.entries)
        return was_empty and self._sure.since is not None

    def settle(self, dataplane: Dataplane) -> None:
        """Has everything compared, unless each slot that was heard of holds what we believe to be in it.

        The kernel does not say who has changed a forwarding entry, or taken a neighbour away (see `Change.port`).
        """
        heard, reconciler = self._sure, dataplane.overlay.reconciler
        programmed = reconciler.programmed
        heard.signs.update(
            sign for item, sign in self._entries.values() if item is not None and item not in programmed
        )
        gone = {slot: sign for slot, (item, sign) in self._entries.items() if item is None}
        if not gone.keys() <= reconciler.emptied:  # else we did it all, as nearly always, and need not look far
            lost = (gone.get(item.slot) for item in programmed if item.kind != ROUTE)
            heard.signs.update(sign for sign in lost if sign is not None)
        reconciler.emptied.clear()
        if heard.signs:
            dataplane.audit(heard)
        self._sure, self._entries = Heard(), {}


def concern(dataplane: Dataplane, own_port: int) -> Concern:
    """What changes mean that may have touched something of ours, as things stand now.

    A change of ours is known by our socket's port id. Neighbours and forwarding entries count later, if they then are
    not what we believe to be there.
    """
    ground = dataplane.footing.ground
    overlay = dataplane.overlay
    places: dict[int, Device | Underlay] = {d.index: d for d in dataplane.footing.devices.values()}
    devices = frozenset(places)
    underlay = frozenset([ground.underlay.index]) if ground else frozenset[int]()
    foreign = overlay.reconciler.foreign_devices
    is_peers = overlay.situation.peers_part if overlay.situation else None
    if ground:
        places[ground.underlay.index] = ground.underlay
    protocol = dataplane.settings.route_protocol
    routes = underlay if ground and ground.backend.follows_routes else frozenset[int]()
    is_lost = ground is not None and dataplane.footing.trouble != ""  # any interface may be the one we wait for

    def sign(change: Change) -> Sign | None:
        if change.port == own_port:
            return None
        if change.subject is Subject.ROUTE:
            is_beside = change.ifindex in routes or (change.is_main and is_peers is not None and is_peers(change))
        else:  # a link that goes takes routes along, of which nothing is told
            is_beside = change.subject in _PLACES and (is_lost or change.ifindex in foreign)
        if not (is_beside or _touches(change, devices, underlay, protocol)):
            return None
        place = places.get(change.ifindex)
        return (cause_of(change, place.mtu), place.name) if place else (cause_of(change), "")

    return sign


_LOCAL_IPV6: Final = (b"\xfe", b"\xff")
_PLACES: Final = (Subject.LINK, Subject.ADDRESS)
_ENTRIES: Final = (Subject.NEIGHBOUR, Subject.FDB_ENTRY)


def _is_suspicious(dataplane: Dataplane, change: Change) -> bool:
    """Whether it may be in the way of packets, or no longer is, without being a matter of our objects.

    Of pods that come and go the kernel tells much: their links, and routes to link-local and multicast addresses.
    """
    if change.subject in (Subject.RULE, Subject.NETCONF, Subject.ADDRESS):
        return True
    if change.subject is Subject.ROUTE:
        return change.protocol != dataplane.settings.route_protocol and change.dst[:1] not in _LOCAL_IPV6
    if change.subject is Subject.LINK:
        return change.is_flip or change.gone
    ground = dataplane.footing.ground
    is_next_hop = (
        change.subject is Subject.NEIGHBOUR and ground is not None and change.ifindex == ground.underlay.index
    )
    return is_next_hop and (bool(change.entries) or change.gone)


def _touches(change: Change, devices: Set[int], underlay: Set[int], protocol: int) -> bool:
    match change.subject:
        case Subject.OVERRUN:
            return True
        case Subject.LINK | Subject.ADDRESS:
            return change.ifindex in devices or change.ifindex in underlay
        case Subject.NETCONF:
            return change.ifindex in devices
        case Subject.RULE:
            return False
        case Subject.ROUTE:
            return change.protocol == protocol or change.ifindex in devices or change.length == 0
        case Subject.NEIGHBOUR | Subject.FDB_ENTRY:
            return change.ifindex in devices
