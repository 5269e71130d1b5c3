"""What somebody else does to the kernel, and which of it explains that an object had to be put right. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from enum import Enum
from typing import Final, TypeAlias

from services.dataplane.netlink.monitor import Change, Subject
from services.dataplane.netlink.objects import FDB_ENTRY, NEIGHBOUR, ROUTE, KernelObject
from services.dataplane.netlink.uapi import AF_BRIDGE


class Cause(Enum):
    """The value is the label of the metric. In this order one explains before another."""

    LINK_DELETED = "link deleted"
    LINK_DOWN = "link down"
    ADDRESS_REMOVED = "address removed"
    ROUTE_DELETED = "route deleted"
    ROUTE_CHANGED = "route changed"
    NEIGHBOUR_DELETED = "neighbour deleted"
    NEIGHBOUR_CHANGED = "neighbour changed"
    FDB_ENTRY_DELETED = "fdb entry deleted"
    FDB_ENTRY_CHANGED = "fdb entry changed"
    LINK_UP = "link up"
    MTU_CHANGED = "mtu changed"
    ADDRESS_ADDED = "address added"
    LINK_CHANGED = "link changed"
    NOTIFICATIONS_LOST = "notifications lost"
    AUDIT = "audit"
    """Nothing was heard: a comparison found it."""


Sign: TypeAlias = tuple[Cause, str]
"""What was heard, and of which interface; an empty name: of none that we know."""

DEVICE: Final = 0
"""A device itself, beside the kinds of objects."""

_BY_SUBJECT: Final = {
    (Subject.ADDRESS, True): Cause.ADDRESS_REMOVED,
    (Subject.ADDRESS, False): Cause.ADDRESS_ADDED,
    (Subject.ROUTE, True): Cause.ROUTE_DELETED,
    (Subject.ROUTE, False): Cause.ROUTE_CHANGED,
    (Subject.NEIGHBOUR, True): Cause.NEIGHBOUR_DELETED,
    (Subject.NEIGHBOUR, False): Cause.NEIGHBOUR_CHANGED,
    (Subject.FDB_ENTRY, True): Cause.FDB_ENTRY_DELETED,
    (Subject.FDB_ENTRY, False): Cause.FDB_ENTRY_CHANGED,
    (Subject.OVERRUN, False): Cause.NOTIFICATIONS_LOST,
}
_ONLY_EXPLAINS: Final = {
    Cause.ROUTE_DELETED: ROUTE,
    Cause.ROUTE_CHANGED: ROUTE,
    Cause.NEIGHBOUR_DELETED: NEIGHBOUR,
    Cause.NEIGHBOUR_CHANGED: NEIGHBOUR,
    Cause.FDB_ENTRY_DELETED: FDB_ENTRY,
    Cause.FDB_ENTRY_CHANGED: FDB_ENTRY,
}
"""The other causes are a device's, and explain all that is on it."""
_ALL: Final = frozenset(Cause)
_ORDER: Final = {cause: number for number, cause in enumerate(Cause)}


def cause_of(change: Change, mtu: int = 0) -> Cause:
    """What a notification tells. `mtu` is the one that its interface had; 0: not known."""
    if change.subject is not Subject.LINK:
        return _BY_SUBJECT.get((change.subject, change.gone), Cause.LINK_CHANGED)
    if change.gone:  # with AF_BRIDGE it has only left a bridge
        return Cause.LINK_CHANGED if change.family == AF_BRIDGE else Cause.LINK_DELETED
    if not change.up:
        return Cause.LINK_DOWN
    if change.is_flip:
        return Cause.LINK_UP
    return Cause.MTU_CHANGED if mtu and change.mtu not in (0, mtu) else Cause.LINK_CHANGED


class Heard:
    """What was heard since the last comparison of everything. Small, however much there was to hear."""

    def __init__(self, signs: Iterable[Sign] = (), since: float | None = None, *, is_asked: bool = False) -> None:
        self.signs: Counter[Sign] = Counter(signs)
        self.since = since
        """When the first of it was heard, on the monotonic clock."""
        self.is_asked = is_asked
        """An operator wants everything to be compared."""

    def add(self, other: "Heard") -> None:
        """That too."""
        self.signs.update(other.signs)
        self.is_asked |= other.is_asked
        self.since = min((since for since in (self.since, other.since) if since is not None), default=None)

    def explain(self, kind: int, device: str) -> Cause:
        """Why an object of this kind on this device was not as it shall be."""
        fitting = (
            cause
            for cause, name in self.signs
            if cause is Cause.NOTIFICATIONS_LOST or (name in (device, "") and _ONLY_EXPLAINS.get(cause, kind) == kind)
        )
        return min(fitting, key=_ORDER.__getitem__, default=Cause.AUDIT)

    def sort(self, objects: Iterable[KernelObject], names: Mapping[int, str]) -> dict[Cause, list[KernelObject]]:
        """The objects by what explains them, the first cause first."""
        found: dict[Cause, list[KernelObject]] = {}
        known: dict[tuple[int, int], Cause] = {}
        for item in objects:
            place = item.kind, item.ifindex
            if place not in known:
                known[place] = self.explain(item.kind, names.get(item.ifindex, ""))
            found.setdefault(known[place], []).append(item)
        return dict(sorted(found.items(), key=lambda pair: _ORDER[pair[0]]))

    def words(self) -> str:
        """`link down on flannel.1; route deleted on eth0, 2 times`. Empty: nothing was heard.

        A link that goes, or goes down, takes what is on it along: that is not told.
        """
        signs = sorted(self.signs, key=lambda sign: (_ORDER[sign[0]], sign[1]))
        gravest = {name: cause for cause, name in reversed(signs)}
        told = [(cause, name) for cause, name in signs if cause in _told_beside(gravest[name])]
        return "; ".join(_words(cause, name, self.signs[cause, name]) for cause, name in told)


def _told_beside(gravest: Cause) -> Set[Cause]:
    """Of what was heard of one interface: what says more than the gravest of it."""
    if gravest in (Cause.LINK_DELETED, Cause.LINK_DOWN):
        return {gravest}
    # Whatever else happens to a link changes it too.
    return _ALL if gravest in (*_ONLY_EXPLAINS, Cause.LINK_CHANGED) else _ALL - {Cause.LINK_CHANGED}


def _words(cause: Cause, name: str, number: int) -> str:
    times = f", {number:,} times" if number > 1 and cause in _ONLY_EXPLAINS else ""
    return f"{cause.value}{' on ' if name else ''}{name}{times}"
