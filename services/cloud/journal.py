"""The kinds of events of this service, as EventKind in cloud.proto, which says what each means."""

from enum import Enum, auto


class EventKind(Enum):
    """The kind of an event of this service."""

    SERVICE_STARTED = auto()
    READINESS = auto()
    ROUTE = auto()
    FINDING = auto()
    FAILURE = auto()
    SYNC = auto()
    TEARDOWN = auto()
