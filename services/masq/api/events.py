"""The journal as messages: what WatchEvents answers."""

from typing import TypeAlias

from flannelette.masq.v1 import masq_pb2 as pb

from services.runtime.events.journal import Journal, RecordedEvent
from services.runtime.events.stream import Reading

EventReading: TypeAlias = Reading[pb.WatchEventsResponse]


def reading_of(journal: Journal, request: pb.WatchEventsRequest) -> EventReading:
    """One call of WatchEvents. Raises InvalidInput for what it cannot look for."""
    return Reading(journal, request, request.chain, _message)


def _message(entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    return pb.WatchEventsResponse(
        chains=[pb.ChainName(name=subject.name, family=subject.of) for subject in event.subjects],
        objects=event.objects,
    )
