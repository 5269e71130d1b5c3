"""The keys of the store that are refused: nodes get nothing of them, and an operator can list and delete them."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from flannelette.services.lease import metrics
from flannelette.services.lease.admission.lease_filter import LeaseFilter
from flannelette.services.lease.events import LeaseEventKind, LeaseJournal
from flannelette.services.lease.stores.store import Changed, Refusal, RefusalKind, Snapshot
from flannelette.services.runtime.events import Subject
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_MOST_LINES: Final = 20
"""In the log within a WINDOW, of single keys: a wrong network refuses every lease, a program may write thousands."""
_WINDOW: Final = 60.0
"""Seconds."""
_MOST_NAMES: Final = 5
"""Of the keys that a line sums up."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a key is refused, and since when."""

    refusal: Refusal
    first_seen: float
    """Unix seconds."""


class Quarantine:
    """All keys that are refused now: by the store (the key holds no lease) or by the filter (the lease is outside).

    A relay's store hands on the refusals of the lease service above it. A key is logged when it enters and when it
    leaves; of many, a line sums them up each time that they have doubled. An event costs as much as the keys that it
    concerns.
    """

    def __init__(self, clock: Callable[[], float], journal: LeaseJournal) -> None:
        self.keys: dict[str, Refused] = {}
        self._by_store: dict[str, str | Refusal] = {}
        self._kinds: Counter[RefusalKind] = Counter()
        self._clock = clock
        self._journal = journal
        self._window = -_WINDOW
        """When it began."""
        self._lines = 0
        self._more: Counter[str] = Counter()
        """Keys without a line of their own in this window, by what has happened to them."""
        self._told = 0
        """How many of them the last summary had."""
        for kind in RefusalKind:
            metrics.QUARANTINED.labels(kind.value).set_function(partial(self._kinds.__getitem__, kind))

    def take(self, event: Snapshot | Changed, leases: LeaseFilter) -> None:
        """Follows an event of the store that the filter has taken."""
        if isinstance(event, Snapshot):
            self._by_store = dict(event.refused)
        else:
            for key in event.cleared:
                self._by_store.pop(key, None)
            self._by_store |= event.refused
        if isinstance(event, Snapshot) or leases.changed is None:
            concerned = {*self.keys, *self._by_store, *leases.refused}
        else:
            concerned = {*leases.changed, *event.cleared, *event.refused}
        entered = [key for key in sorted(concerned) if self._update(key, self._refusal(key, leases))]
        left = [key for key in sorted(concerned & self.keys.keys()) if self._refusal(key, leases) is None]
        for key in left:
            self._kinds[self.keys.pop(key).refusal.kind] -= 1
        if entered or left:
            self._log(entered, left, leases)
        for key in entered:
            self._tell(LeaseEventKind.QUARANTINED, key, "refused", self.keys[key].refusal.reason)
        for key in left:
            self._tell(LeaseEventKind.QUARANTINE_ENDED, key, "no longer refused", "")

    def _tell(self, kind: LeaseEventKind, key: str, what: str, cause: str) -> None:
        self._journal.note_one(kind, Subject(key), lambda: (f"key {what}: {key}", cause))

    def _update(self, key: str, refusal: Refusal | None) -> bool:
        """Keeps why a key is refused; returns whether it was not refused before."""
        known = self.keys.get(key)
        if refusal is None or (known and known.refusal == refusal):
            return False
        if known:
            self._kinds[known.refusal.kind] -= 1
        self._kinds[refusal.kind] += 1
        self.keys[key] = Refused(refusal, known.first_seen if known else self._clock())
        return known is None

    def _refusal(self, key: str, leases: LeaseFilter) -> Refusal | None:
        reason = self._by_store.get(key)
        if reason is None:
            return leases.refused.get(key)
        return reason if isinstance(reason, Refusal) else Refusal(RefusalKind.UNREADABLE, reason)

    def _log(self, entered: Collection[str], left: Collection[str], leases: LeaseFilter) -> None:
        now, unnamed = self._clock(), []
        if not 0 <= now - self._window < _WINDOW:
            self._window, self._lines, self._told = now, 0, 0
            self._more.clear()
        for key in (*entered, *left):
            refused = self.keys.get(key)
            if self._lines >= _MOST_LINES:
                self._more["refused" if refused else "refused_no_longer"] += 1
                unnamed.append(key)
            elif refused:
                why = refused.refusal
                log.warning("a key of the store is refused", key=key, kind=why.kind.value, reason=why.reason)
            else:
                log.info("a key of the store is no longer refused", key=key, served=key in leases.leases)
            self._lines += 1
        if unnamed and self._more.total() >= 2 * self._told:
            self._told = self._more.total()
            log.warning("and more keys, which ListQuarantine shows", **self._more, first=unnamed[:_MOST_NAMES])
