"""The journal as messages: what WatchEvents answers."""

from typing import Final, TypeAlias

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.dataplane.events.journal import Cause, NodeJournal
from flannelette.services.runtime.events import Reading, RecordedEvent

_CAUSES: Final = {cause: pb.RepairCause.Value(f"REPAIR_CAUSE_{cause.name}") for cause in Cause}

EventReading: TypeAlias = Reading[pb.WatchEventsResponse]


def reading_of(journal: NodeJournal, request: pb.WatchEventsRequest) -> EventReading:
    """One call of WatchEvents. Raises InvalidInput for what it cannot look for."""
    return Reading(journal, request, request.peer, _message)


def repair_counts(journal: NodeJournal) -> list[pb.RepairCount]:
    """The repairs since the start, by cause."""
    repairs = journal.repairs
    return [pb.RepairCount(cause=number, objects=repairs[each]) for each, number in _CAUSES.items() if repairs[each]]


def _message(entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    message = pb.WatchEventsResponse(
        peers=[pb.PeerName(name=subject.name, node=subject.of) for subject in event.subjects],
        peer_count=event.subject_count,
        objects=event.objects,
    )
    if isinstance(event.repair, Cause):
        message.repair_cause = _CAUSES[event.repair]
    return message
