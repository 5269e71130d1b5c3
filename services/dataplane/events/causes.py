"""What other programs do to the kernel, and which of it is the cause of a repair. Pure."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, TypeAlias

from services.dataplane.netlink.monitor import Change, ChangedObject
from services.dataplane.netlink.uapi import AF_BRIDGE


class Cause(Enum):
    """Why objects of ours were not as desired. The value is the label of the metric; the gravest is first."""

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
    """No notification of the kernel tells it: a comparison found it."""


Observation: TypeAlias = tuple[Cause, str]
"""A cause, and the name of its interface; empty: an interface that is not known."""

_BY_SUBJECT: Final = {
    (ChangedObject.ADDRESS, True): Cause.ADDRESS_REMOVED,
    (ChangedObject.ADDRESS, False): Cause.ADDRESS_ADDED,
    (ChangedObject.ROUTE, True): Cause.ROUTE_DELETED,
    (ChangedObject.ROUTE, False): Cause.ROUTE_CHANGED,
    (ChangedObject.NEIGHBOUR, True): Cause.NEIGHBOUR_DELETED,
    (ChangedObject.NEIGHBOUR, False): Cause.NEIGHBOUR_CHANGED,
    (ChangedObject.FDB_ENTRY, True): Cause.FDB_ENTRY_DELETED,
    (ChangedObject.FDB_ENTRY, False): Cause.FDB_ENTRY_CHANGED,
    (ChangedObject.OVERRUN, False): Cause.NOTIFICATIONS_LOST,
}
_OF_OBJECTS: Final = frozenset(
    cause
    for (subject, _), cause in _BY_SUBJECT.items()
    if subject not in (ChangedObject.ADDRESS, ChangedObject.OVERRUN)
)
"""The causes that are worth a count."""
_ORDER: Final = {cause: number for number, cause in enumerate(Cause)} | {Cause.NOTIFICATIONS_LOST: -1}
"""The gravest first; what got lost may be anything."""


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


@dataclass(frozen=True, slots=True)
class Observations:
    """What others did to the kernel since the last full comparison. Small, however many notifications there were."""

    counts: Mapping[Observation, int] = field(default_factory=dict)
    since: float | None = None
    """When the first of it was observed, on the monotonic clock."""
    is_requested: bool = False
    """An operator asked for a full comparison."""

    def __add__(self, other: "Observations") -> "Observations":
        moments = [since for since in (self.since, other.since) if since is not None]
        counts = Counter(self.counts) + Counter(other.counts)
        return Observations(counts, min(moments, default=None), self.is_requested or other.is_requested)

    @property
    def cause(self) -> Cause:
        """The gravest: why objects or devices were not as desired."""
        return self._gravest[0]

    @property
    def words(self) -> str:
        """`route deleted on flannel.1, 2 times`: the gravest. Empty: nothing was observed."""
        if not self.counts:
            return ""
        cause, name = self._gravest
        number = self.counts[cause, name]
        times = f", {number:,} times" if number > 1 and cause in _OF_OBJECTS else ""
        return f"{cause.value}{' on ' if name else ''}{name}{times}"

    @property
    def _gravest(self) -> Observation:
        return min(self.counts, key=lambda each: (_ORDER[each[0]], each[1]), default=(Cause.AUDIT, ""))
