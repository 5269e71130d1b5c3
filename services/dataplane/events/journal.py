"""The dataplane's events: their kinds, and the count of what was repaired."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum, auto

from flannelette.services.dataplane.events import metrics
from flannelette.services.dataplane.events.causes import Cause
from flannelette.services.runtime import events
from flannelette.services.runtime.events import REMEMBERED, RecordedEvent
from flannelette.services.runtime.events import Event as Event
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger

log = get_logger()


class EventKind(Enum):
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


class Journal(events.Journal):
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
