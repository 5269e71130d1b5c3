"""The journal as messages: what WatchEvents answers."""

from typing import TypeAlias

from flannelette.lease.v1 import lease_pb2 as pb

from services.lease.events.journal import Journal
from services.runtime.events.journal import RecordedEvent
from services.runtime.events.stream import Reading

EventReading: TypeAlias = Reading[pb.WatchEventsResponse]


def reading_of(journal: Journal, request: pb.WatchEventsRequest) -> EventReading:
    """One call of WatchEvents. Raises InvalidInput for what it cannot look for."""
    return Reading(journal, request, request.name, _message)


def _message(entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    return pb.WatchEventsResponse(
        leases=[pb.LeaseName(name=subject.name, node=subject.of) for subject in event.subjects],
        lease_count=event.subject_count,
    )
