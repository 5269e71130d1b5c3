"""The dataplane's events: their kinds, the causes of repairs (what other programs do to the kernel), and the journal,
which counts repairs.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeAlias

from flannelette.services.dataplane.events import metrics
from flannelette.services.runtime import events
from flannelette.services.runtime.events import REMEMBERED, RecordedEvent
from flannelette.services.runtime.events import Event as Event
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger


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
    POLICY_DELETED = "policy deleted"
    POLICY_CHANGED = "policy changed"
    LINK_UP = "link up"
    MTU_CHANGED = "mtu changed"
    ADDRESS_ADDED = "address added"
    LINK_CHANGED = "link changed"
    NOTIFICATIONS_LOST = "notifications lost"
    AUDIT = "audit"
    """No notification of the kernel tells it: a comparison found it."""


Observation: TypeAlias = tuple[Cause, str]
"""A cause, and the name of its interface; empty: an interface that is not known."""

_OF_OBJECTS: Final = frozenset(
    (
        Cause.ROUTE_DELETED,
        Cause.ROUTE_CHANGED,
        Cause.NEIGHBOUR_DELETED,
        Cause.NEIGHBOUR_CHANGED,
        Cause.FDB_ENTRY_DELETED,
        Cause.FDB_ENTRY_CHANGED,
        Cause.POLICY_DELETED,
        Cause.POLICY_CHANGED,
    )
)
"""The causes that are worth a count."""
_ORDER: Final = {cause: number for number, cause in enumerate(Cause)} | {Cause.NOTIFICATIONS_LOST: -1}
"""The gravest first; what got lost may be anything."""


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


log = get_logger()


class NodeEventKind(Enum):
    """The kind of an event, as EventKind in dataplane.proto, which says what each means."""

    SERVICE_STARTED = auto()
    READINESS = auto()
    LEASE_SERVICE = auto()
    NETWORK = auto()
    UNDERLAY = auto()
    OWN_LEASE = auto()
    DEVICE = auto()
    PEER_ADDED = auto()
    PEER_CHANGED = auto()
    PEER_REMOVED = auto()
    PEERS_CHANGED = auto()
    RESYNC = auto()
    REPAIR = auto()
    FAILURE = auto()
    TEARDOWN = auto()
    HAND_OVER = auto()
    COMMAND = auto()
    PEER_ANSWERS = auto()
    CAPTURE = auto()


class NodeJournal(events.Journal):
    """The journal, which counts and logs repairs: the subjects of its events are leases with their nodes."""

    def __init__(
        self,
        size: int = REMEMBERED,
        clock: Callable[[], float] = time.time,
        earlier: Sequence[RecordedEvent] = (),
    ) -> None:
        super().__init__(size, clock, earlier)
        self.repairs: Counter[Cause] = Counter()
        """Objects that were repaired, since the start."""
        self._may_log = LogLimiter()

    def note(self, event: Event) -> None:
        """Records an event, and counts and logs it if it is a repair."""
        super().note(event)
        if isinstance(event.repair, Cause):
            self.repairs[event.repair] += event.objects
            metrics.REPAIRS.labels(event.repair.value).inc(event.objects)
            self._log(event, event.repair)

    def _log(self, event: Event, cause: Cause) -> None:
        if self._may_log(cause):
            log.warning(
                "another program changed our kernel objects; repaired", repaired=event.what, cause=event.cause
            )
