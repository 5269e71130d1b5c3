"""What one call of WatchEvents tells, in any of the services: their requests and answers have the same fields."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Generic, TypeVar

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.limits import unix_time
from flannelette.services.runtime.events.journal import Journal, RecordedEvent

M = TypeVar("M")


class Reading(Generic[M]):
    """How far one call has come. Raises InvalidInput for what it cannot look for.

    `request` is a WatchEventsRequest of any service, `subject` the name that events shall concern, `message` makes a
    WatchEventsResponse of the service with what is its own.
    """

    def __init__(self, journal: Journal, request: Any, subject: str, message: Callable[[RecordedEvent], M]) -> None:
        self._journal = journal
        self._number = journal.number_of(request.after)
        self._since = unix_time(request.since_time, "since_time") if request.HasField("since_time") else 0.0
        self._kinds = frozenset(request.kinds)
        self._subject = subject
        self._message = message
        self._missed = 0

    @property
    def is_complete(self) -> bool:
        """Whether the journal has no later event."""
        return self._number >= self._journal.last

    def take(self) -> list[M]:
        """The next events that are wanted, some at a time. What is missed is told with the next one of these."""
        entries, missed = self._journal.after(self._number)
        self._number = entries[-1].number if entries else self._number
        self._missed += missed
        messages = [_filled(self._message(entry), entry) for entry in entries if self._is_wanted(entry)]
        if messages:
            messages[0].missed, self._missed = self._missed, 0
        return messages

    async def news(self) -> None:
        """Returns once there is more."""
        await self._journal.news(self._number)

    def _is_wanted(self, entry: RecordedEvent) -> bool:
        is_of_kind = not self._kinds or entry.event.kind.value in self._kinds
        is_about = not self._subject or entry.event.concerns(self._subject)
        return is_of_kind and is_about and entry.time >= self._since


async def watch(reading: Reading[M], stopping: asyncio.Event, *, follows: bool, end: str) -> AsyncIterator[M]:
    """What there is, then, if it `follows`, what comes. Raises Unavailable(end) when we stop."""
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        while not stopped.done():
            for message in reading.take():
                yield message
            if not reading.is_complete:
                continue
            if not follows:
                return
            await either(stopped, reading.news())
    finally:
        stopped.cancel()
    raise Unavailable(end)


async def either(stopped: asyncio.Future[Any], waits: Coroutine[Any, Any, object], most: float | None = None) -> None:
    """Returns when one of them is done, or after so many seconds; nothing waits on, also if the caller has left."""
    task = asyncio.ensure_future(waits)
    try:
        await asyncio.wait((stopped, task), return_when=asyncio.FIRST_COMPLETED, timeout=most)
    finally:
        task.cancel()


def _filled(message: Any, entry: RecordedEvent) -> Any:
    """The message with the fields that those of all services have. The values of kinds are those of the .proto."""
    event = entry.event
    message.time.FromMicroseconds(round(entry.time * 1e6))
    message.what, message.cause, message.kind = event.what, event.cause, event.kind.value
    message.microseconds = round(event.seconds * 1e6)
    message.position, message.cursor = entry.position, entry.cursor
    return message
