"""The last few thousand decisions: what was done, why, and how long it took from the cause to the effect."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

from services.dataplane.events import metrics
from services.dataplane.events.causes import Cause
from services.runtime.telemetry.logs import LogLimiter, get_logger

log = get_logger()

REMEMBERED: Final = 4096
"""Events. With the names in them below 1 KiB each."""
_AT_ONCE: Final = 64


class EventKind(Enum):
    """As EventKind in dataplane.proto, which says what each means."""

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


class PeerName(NamedTuple):
    """Of a lease."""

    lease: str
    node: str


@dataclass(frozen=True, slots=True)
class Event:
    """A decision."""

    kind: EventKind
    what: str
    cause: str = ""
    seconds: float = 0.0
    """From the moment the cause was known to the end of it; 0: not measured."""
    peers: tuple[PeerName, ...] = ()
    """Those that it concerns; only the first ones, if there are many."""
    peer_count: int = 0
    objects: int = 0
    """Kernel objects that were put or deleted."""
    repair: Cause | None = None

    def concerns(self, name: str) -> bool:
        """Whether it may concern the peer with this lease name or node: it names it, or not all of its peers."""
        return self.peer_count > len(self.peers) or any(name in peer for peer in self.peers)


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """An event in its place."""

    number: int
    """Counts from 1."""
    time: float
    """Unix time, by the clock of then."""
    cursor: str
    """Of the leases that were known."""
    event: Event


class Journal:
    """A ring buffer. A slow reader misses the oldest entries, and delays no other reader."""

    def __init__(self, size: int = REMEMBERED, clock: Callable[[], float] = time.time) -> None:
        self.epoch = secrets.token_hex(4)
        """Of this process; entries are numbered anew in each."""
        self.last = 0
        """Number of the newest entry."""
        self.cursor = ""
        """Of the leases that are known now."""
        self.repairs: Counter[Cause] = Counter()
        """Objects that were repaired, since the start."""
        self._ring: list[RecordedEvent | None] = [None] * size
        self._clock = clock
        self._news = asyncio.Event()
        self._may_log = LogLimiter()

    def note(self, event: Event) -> None:
        """Remembers, counts what it repaired, and wakes who waits. Never waits itself."""
        self.last += 1
        self._ring[self.last % len(self._ring)] = RecordedEvent(self.last, self._clock(), self.cursor, event)
        if event.repair is not None:
            self.repairs[event.repair] += event.objects
            metrics.REPAIRS.labels(event.repair.value).inc(event.objects)
            self._log(event, event.repair)
        if not self._news.is_set():
            self._news.set()

    def after(self, number: int) -> tuple[list[RecordedEvent], int]:
        """The next entries after that one, some at a time, and how many before them are forgotten already."""
        first = max(number + 1, self.last + 1 - len(self._ring))
        last = min(self.last, first + _AT_ONCE - 1)
        entries = [self._ring[each % len(self._ring)] for each in range(first, last + 1)]
        return [entry for entry in entries if entry is not None], first - number - 1

    async def news(self, number: int) -> None:
        """Returns once there is an entry after that one."""
        while self.last <= number:
            self._news.clear()
            await self._news.wait()

    def _log(self, event: Event, cause: Cause) -> None:
        if self._may_log(cause):
            log.warning(
                "another program changed our kernel objects; repaired", repaired=event.what, cause=event.cause
            )
