"""The journal as messages: what WatchEvents answers."""

from collections.abc import Callable
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb

from services.core.errors import InvalidInput
from services.core.limits import unix_time
from services.dataplane.events.causes import Cause
from services.dataplane.events.journal import EventKind, Journal, RecordedEvent

_KINDS: Final = {kind: pb.EventKind.Value(f"EVENT_KIND_{kind.name}") for kind in EventKind}
_MOST_DIGITS: Final = 18
"""Of the number in a position."""
_CAUSES: Final = {cause: pb.RepairCause.Value(f"REPAIR_CAUSE_{cause.name}") for cause in Cause}


class Reading:
    """What one call of WatchEvents has told, and what comes next. Raises InvalidInput for what it cannot look for."""

    def __init__(self, journal: Journal, request: pb.WatchEventsRequest) -> None:
        self._journal = journal
        self._number = _number(journal, request.after)
        self._is_wanted = _filter(request)

    @property
    def is_complete(self) -> bool:
        """Everything there is was told."""
        return self._number >= self._journal.last

    def take(self) -> list[pb.WatchEventsResponse]:
        """The next events that are wanted, some at a time."""
        entries, missed = self._journal.after(self._number)
        messages = [_message(self._journal, entry) for entry in entries if self._is_wanted(entry)]
        if messages:
            messages[0].missed = missed
        self._number = entries[-1].number if entries else self._number
        return messages

    async def news(self) -> None:
        """Returns once there is more."""
        await self._journal.news(self._number)


def repair_counts(journal: Journal) -> list[pb.RepairCount]:
    """The repairs since the start, by cause."""
    repairs = journal.repairs
    return [pb.RepairCount(cause=number, objects=repairs[each]) for each, number in _CAUSES.items() if repairs[each]]


def _number(journal: Journal, position: str) -> int:
    epoch, _, number = position.partition(":")
    if position and not (epoch and number.isdecimal() and len(number) <= _MOST_DIGITS):
        raise InvalidInput(f"{position!r} is not a position: give the `position` of an event, or leave it empty")
    return min(int(number), journal.last) if epoch == journal.epoch else 0


def _filter(request: pb.WatchEventsRequest) -> Callable[[RecordedEvent], bool]:
    since = unix_time(request.since_time, "since_time") if request.HasField("since_time") else 0.0
    kinds, peer = frozenset(request.kinds), request.peer

    def wanted(entry: RecordedEvent) -> bool:
        event = entry.event
        is_of_kind = not kinds or _KINDS[event.kind] in kinds
        return is_of_kind and entry.time >= since and (not peer or event.concerns(peer))

    return wanted


def _message(journal: Journal, entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    message = pb.WatchEventsResponse(
        what=event.what,
        cause=event.cause,
        microseconds=round(event.seconds * 1e6),
        kind=_KINDS[event.kind],
        position=f"{journal.epoch}:{entry.number}",
        cursor=entry.cursor,
        peers=[pb.PeerName(name=peer.lease, node=peer.node) for peer in event.peers],
        peer_count=event.peer_count,
        objects=event.objects,
    )
    message.time.FromMicroseconds(round(entry.time * 1e6))
    if event.repair is not None:
        message.repair_cause = _CAUSES[event.repair]
    return message
