"""The lease service's events: their kinds, and the limit on those of which many come at once."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum, auto
from typing import Final

from flannelette.services.runtime import events
from flannelette.services.runtime.events import MOST_NAMED, Event, RecordedEvent, Subject

_GROUP_SECONDS: Final = 1.0


class EventKind(Enum):
    """The kind of an event, as EventKind in lease.proto, which says what each means."""

    SERVICE_STARTED = auto()
    READINESS = auto()
    STORE = auto()
    NETWORK = auto()
    LEASE_ACQUIRED = auto()
    LEASE_CHANGED = auto()
    LEASE_REMOVED = auto()
    LEASE_EXPIRED = auto()
    LEASE_REFUSED = auto()
    LEASE_RENEWED = auto()
    REMOVALS_HELD = auto()
    REMOVALS_ENDED = auto()
    QUARANTINED = auto()
    QUARANTINE_ENDED = auto()
    NODE_CONNECTED = auto()
    NODE_DISCONNECTED = auto()
    OPERATOR = auto()
    IMPORT = auto()


_MANY: Final = {
    EventKind.LEASE_ACQUIRED: "leases acquired",
    EventKind.LEASE_CHANGED: "leases changed",
    EventKind.LEASE_REMOVED: "leases removed",
    EventKind.LEASE_EXPIRED: "leases expired",
    EventKind.LEASE_REFUSED: "requests for leases refused",
    EventKind.LEASE_RENEWED: "leases renewed after failures",
    EventKind.QUARANTINED: "keys refused",
    EventKind.QUARANTINE_ENDED: "keys no longer refused",
    EventKind.IMPORT: "leases of other clusters not imported",
    EventKind.NODE_CONNECTED: "nodes connected",
    EventKind.NODE_DISCONNECTED: "nodes disconnected",
}
"""Kinds of which many may come at once, in the words for the rest of them."""


class Journal(events.Journal):
    """The journal, in which a thousand nodes that come within a second are nine events.

    Of these kinds it tells eight in a second one by one, and the rest as one at the end of the second.
    """

    def __init__(self, earlier: Sequence[RecordedEvent] = (), timer: Callable[[], float] = time.monotonic) -> None:
        super().__init__(earlier=earlier)
        self.is_stopping = False
        """Streams end because the service does."""
        self._timer = timer
        self._begun = -_GROUP_SECONDS
        self._told: Counter[EventKind] = Counter()
        self._rest: dict[EventKind, list[Subject]] = {}
        self._counts: Counter[EventKind] = Counter()
        self._has_rest = asyncio.Event()

    def note_one(self, kind: EventKind, subject: Subject, words: Callable[[], tuple[str, str]]) -> None:
        """Notes an event of which many may come at once; `words` makes what happened and why, if it is told alone."""
        now = self._timer()
        if now - self._begun >= _GROUP_SECONDS:
            self.flush()
            self._begun = now
        if self._told[kind] < MOST_NAMED:
            self._told[kind] += 1
            what, cause = words()
            self.note(Event(kind, what, cause, subjects=(subject,), subject_count=1))
            return
        named = self._rest.setdefault(kind, [])
        if len(named) < MOST_NAMED:
            named.append(subject)
        self._counts[kind] += 1
        self._has_rest.set()

    def flush(self) -> None:
        """Notes the events that the limit held back, as one event of each kind."""
        for kind, subjects in self._rest.items():
            count = self._counts[kind]
            names = ", ".join(subject.of or subject.name for subject in subjects)
            dots = ", ..." if count > len(subjects) else ""
            what = f"{count:,} more {_MANY[kind]}: {names}{dots}"
            self.note(Event(kind, what, "within a second", subjects=tuple(subjects), subject_count=count))
        self._rest.clear()
        self._counts.clear()
        self._told.clear()
        self._has_rest.clear()

    async def run(self) -> None:
        """Tells the rest in time, until it is cancelled."""
        while True:
            await self._has_rest.wait()
            await asyncio.sleep(_GROUP_SECONDS)
            self.flush()
