"""Watches what others change in the kernel, and has everything compared, or the host checked, again."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Set
from typing import Final, TypeAlias

from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.events import Cause, Observation, Observations
from flannelette.services.dataplane.kernel.reconciler import Reconciler, rules_of
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.netlink.actuator import Actuator
from flannelette.services.dataplane.netlink.monitor import Change, ChangedObject
from flannelette.services.dataplane.netlink.objects import ROUTE, KernelObject
from flannelette.services.dataplane.netlink.uapi import AF_BRIDGE, AF_INET
from flannelette.services.dataplane.underlay import Underlay

_SETTLE_SECONDS: Final = 0.01
"""One fault is many notifications (a link that goes down takes every route along): they end in one comparison."""
_UNREST_SECONDS: Final = 0.05
"""The same right after another fault: who fights with us, or flushes ten thousand routes, gets 20 comparisons a
second and not 100."""
_QUIET_SECONDS: Final = 0.5
_MOST_READINGS: Final = 16
"""Readings of what waits before a comparison is asked for, at most: an endless stream does not delay it."""
_REST: Final = 5
"""So many times what the last comparison took goes by before the next: a fight costs a fifth of a core at most."""

_MOST_GONE: Final = 10_000
"""Neighbours that are remembered as gone: those of an underlay that somebody scans are no peers."""

Classifier: TypeAlias = Callable[[Change], Observation | None]
"""What a change means to us; None: nothing."""


async def watch_kernel(dataplane: Controller, kernel: Actuator, own_port: int) -> None:
    """Watches the kernel until cancelled. Reads on while a fault settles, so that a burst is one comparison and the
    queue stays short.
    """
    loop = asyncio.get_running_loop()
    pending, suspicions, settled_at = Pending(), Suspicions(), -math.inf

    def settle() -> None:
        nonlocal settled_at
        if dataplane.lock.locked():  # what it takes away is still believed to be there
            loop.call_later(_SETTLE_SECONDS, settle)
            return
        for _ in range(_MOST_READINGS):  # what we did in the last turn is told by now: it explains what came before
            told = kernel.waiting()
            pending.take(told, classifier(dataplane, own_port))
            if not told:
                break
        observed = pending.settle(dataplane.programmer.reconciler)
        if observed.counts:
            dataplane.audit(observed)
        settled_at = loop.time()

    async for changes in kernel.changes():
        news = [change for change in changes if suspicions.is_news(change) and _is_suspicious(dataplane, change)]
        if [change for change in news if not suspicions.is_peer_away(dataplane, change)]:
            dataplane.suspicious.set()
        if pending.take(changes, classifier(dataplane, own_port)):
            loop.call_later(pause(loop.time() - settled_at, dataplane.programmer.last_resync_cpu), settle)


def pause(since: float, cost: float) -> float:
    """Seconds until the next comparison, so many after the last one was asked for, which took `cost` of a core."""
    rest = _REST * cost
    if since > max(_QUIET_SECONDS, rest):
        return _SETTLE_SECONDS
    return max(_UNREST_SECONDS, rest - since)


class Suspicions:
    """Neighbours that are gone, by the last notification of each: one is sent with every ARP request that fails."""

    def __init__(self) -> None:
        self._gone = set[Hashable]()
        self._hosts: tuple[int, Set[Hashable]] = -1, frozenset()
        """Addresses of the peers' hosts, after this iteration of the control loop."""

    def is_news(self, change: Change) -> bool:
        """Whether it tells more than that a neighbour is still gone."""
        if change.subject is ChangedObject.OVERRUN or len(self._gone) > _MOST_GONE:
            self._gone.clear()
        if change.subject is not ChangedObject.NEIGHBOUR or not change.gone:
            self._gone -= {change.key, *(each.key for each in change.entries)}
            return True
        is_known = change.key in self._gone
        self._gone.add(change.key)
        return not is_known

    def is_peer_away(self, dataplane: Controller, change: Change) -> bool:
        """Whether it tells only that the host of a peer does not answer, which probes say of each peer in turn.

        While there are findings, it may be that one is over.
        """
        config = dataplane.tracker.config
        is_beside = config is not None and change.ifindex == config.underlay.index
        if change.subject is not ChangedObject.NEIGHBOUR or not (is_beside and change.gone) or dataplane.findings:
            return False
        if self._hosts[0] != dataplane.iterations:
            peers = dataplane.programmer.peers.values()
            hosts = {s.public_address.packed for peer in peers for s in peer.candidates if s.public_address}
            self._hosts = dataplane.iterations, hosts
        return isinstance(change.key, tuple) and change.key[-1] in self._hosts[1]


class Pending:
    """Notifications that concern us and have not been acted upon."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._certain: Counter[Observation] = Counter()
        self._entries: dict[Hashable, tuple[KernelObject | None, Observation]] = {}
        """What each key of neighbours and FDB entries holds by the last notification, and the meaning of that."""

    def take(self, changes: list[Change], classify: Classifier) -> bool:
        """Notes what concerns us; True: it is the first, so `settle` is due soon."""
        was_empty = self._since is None
        for change in changes:
            observation = classify(change)
            if observation is not None:
                self._since = self._since or time.monotonic()
                if change.subject not in _ENTRIES:
                    self._certain[observation] += 1
                elif change.key is not None:
                    self._entries[change.key] = None, observation
                else:
                    self._entries.update((item.key, (item, observation)) for item in change.entries)
        return was_empty and self._since is not None

    def settle(self, reconciler: Reconciler) -> Observations:
        """What others changed, and nothing if each key of a notification holds what is known to be programmed.

        The kernel does not say who changed an FDB entry, or deleted a neighbour (see `Change.port`).
        """
        counts, programmed = self._certain, reconciler.programmed
        counts.update(seen for item, seen in self._entries.values() if item is not None and item not in programmed)
        gone = {key: seen for key, (item, seen) in self._entries.items() if item is None}
        if not gone.keys() <= reconciler.take_deleted_keys():  # else we deleted all of it, as nearly always
            lost = (gone.get(item.key) for item in programmed if item.kind != ROUTE)
            counts.update(seen for seen in lost if seen is not None)
        since, self._since = self._since, None
        self._certain, self._entries = Counter(), {}
        return Observations(counts, since)


def classifier(dataplane: Controller, own_port: int) -> Classifier:
    """What changes mean that may have touched something of ours, as things stand now.

    A change of ours is known by our socket's port id. Neighbours and forwarding entries count later, if they then are
    not what we believe to be there.
    """
    config = dataplane.tracker.config
    programmer = dataplane.programmer
    places: dict[int, Device | Underlay] = {d.index: d for d in dataplane.tracker.all_devices()}
    devices = frozenset(places)
    underlay = frozenset([config.underlay.index]) if config else frozenset[int]()
    foreign = programmer.reconciler.foreign_devices
    rules = rules_of(programmer.context) if programmer.context else None
    is_peers, is_inside = (rules.peers_part(), rules.network_part()) if rules else (None, None)
    is_policys = config is not None and config.backend.has_policies
    if config:
        places[config.underlay.index] = config.underlay
    protocol = dataplane.settings.route_protocol
    routes = underlay if any(c.backend.follows_routes for c in dataplane.tracker.configs) else frozenset[int]()
    is_lost = config is not None and dataplane.tracker.error != ""  # any interface may be the one we wait for

    def sign(change: Change) -> Observation | None:
        if change.port == own_port:
            return None
        if change.subject is ChangedObject.POLICY:
            is_beside = is_policys and (not change.dst or is_inside is None or is_inside(change))
        elif change.subject is ChangedObject.ROUTE:
            is_peers_or_drops = is_inside if change.drops else is_peers  # what leads to own pods, CNI makes often
            is_beside = change.ifindex in routes or (
                change.is_main and is_peers_or_drops is not None and is_peers_or_drops(change)
            )
        else:  # a link that goes takes routes along, of which nothing is told
            is_beside = change.subject in _PLACES and (is_lost or change.ifindex in foreign)
        if not (is_beside or _touches(change, devices, underlay, protocol)):
            return None
        place = places.get(change.ifindex)
        return (cause_of(change, place.mtu), place.name) if place else (cause_of(change), "")

    return sign


_BY_SUBJECT: Final = {
    (ChangedObject.ADDRESS, True): Cause.ADDRESS_REMOVED,
    (ChangedObject.ADDRESS, False): Cause.ADDRESS_ADDED,
    (ChangedObject.ROUTE, True): Cause.ROUTE_DELETED,
    (ChangedObject.ROUTE, False): Cause.ROUTE_CHANGED,
    (ChangedObject.NEIGHBOUR, True): Cause.NEIGHBOUR_DELETED,
    (ChangedObject.NEIGHBOUR, False): Cause.NEIGHBOUR_CHANGED,
    (ChangedObject.FDB_ENTRY, True): Cause.FDB_ENTRY_DELETED,
    (ChangedObject.FDB_ENTRY, False): Cause.FDB_ENTRY_CHANGED,
    (ChangedObject.POLICY, True): Cause.POLICY_DELETED,
    (ChangedObject.POLICY, False): Cause.POLICY_CHANGED,
    (ChangedObject.OVERRUN, False): Cause.NOTIFICATIONS_LOST,
}


def cause_of(change: Change, mtu: int = 0) -> Cause:
    """What a notification tells. `mtu` is the one that its interface had; 0: not known."""
    if change.subject is not ChangedObject.LINK:
        return _BY_SUBJECT.get((change.subject, change.gone), Cause.LINK_CHANGED)
    if change.gone:  # with AF_BRIDGE it has only left a bridge
        return Cause.LINK_CHANGED if change.family == AF_BRIDGE else Cause.LINK_DELETED
    if not change.up:
        return Cause.LINK_DOWN
    if change.is_flip:
        return Cause.LINK_UP
    return Cause.MTU_CHANGED if mtu and change.mtu not in (0, mtu) else Cause.LINK_CHANGED


_LOCAL_IPV6: Final = (b"\xfe", b"\xff")
_PLACES: Final = (ChangedObject.LINK, ChangedObject.ADDRESS)
_ENTRIES: Final = (ChangedObject.NEIGHBOUR, ChangedObject.FDB_ENTRY)


def _is_suspicious(dataplane: Controller, change: Change) -> bool:
    """Whether it may be in the way of packets, or no longer is, without being a matter of our objects.

    Of pods that come and go the kernel tells much, such as routes to link-local and multicast addresses. A link may
    be a port of the pods' bridge, and a neighbour that is gone a pod that no longer answers.
    """
    if change.subject in (ChangedObject.RULE, ChangedObject.NETCONF, ChangedObject.ADDRESS):
        return True
    if change.subject is ChangedObject.ROUTE:
        return change.protocol != dataplane.settings.route_protocol and change.dst[:1] not in _LOCAL_IPV6
    if change.subject is ChangedObject.LINK:
        return True
    if change.subject is not ChangedObject.NEIGHBOUR:
        return False
    config = dataplane.tracker.config
    is_next_hop = config is not None and change.ifindex == config.underlay.index
    is_pod = not is_next_hop and change.ifindex not in {d.index for d in dataplane.tracker.all_devices()}
    return (is_next_hop and bool(change.entries)) or ((is_next_hop or is_pod) and change.gone)


def _touches(change: Change, devices: Set[int], underlay: Set[int], protocol: int) -> bool:
    match change.subject:
        case ChangedObject.OVERRUN:
            return True
        case ChangedObject.LINK | ChangedObject.ADDRESS:
            return change.ifindex in devices or change.ifindex in underlay
        case ChangedObject.NETCONF:  # of IPv6 none is a matter of our devices
            return change.ifindex in devices and change.family == AF_INET
        case ChangedObject.RULE | ChangedObject.POLICY:
            return False
        case ChangedObject.ROUTE:
            return change.protocol == protocol or change.ifindex in devices or change.length == 0
        case ChangedObject.NEIGHBOUR | ChangedObject.FDB_ENTRY:
            return change.ifindex in devices
