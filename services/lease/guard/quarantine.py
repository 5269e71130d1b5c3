"""Keys of the store that are refused: they change nothing, and an operator can see them."""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final

from services.lease import metrics
from services.lease.guard.admission import Admission
from services.lease.refusal import Kind, Refusal
from services.lease.store import Changed, Snapshot
from services.runtime.logs import get_logger

log = get_logger()

_MOST_LINES: Final = 20
"""In the log, of one event of the store: a wrong network refuses every lease at once."""


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a key is refused, and since when."""

    refusal: Refusal
    first_seen: float
    """Unix seconds."""


class Quarantine:
    """What is refused now, by the store (it is no lease) or by the admission (it is one, and is not served).

    A relay's store hands on what the lease service above refuses, and why.

    A key that comes is logged, and one that leaves; what an event costs is the keys that it concerns.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.keys: dict[str, Refused] = {}
        self._by_store: dict[str, str | Refusal] = {}
        self._kinds: Counter[Kind] = Counter()
        self._clock = clock
        for kind in Kind:
            metrics.QUARANTINED.labels(kind.value).set_function(partial(self._kinds.__getitem__, kind))

    def take(self, event: Snapshot | Changed, admission: Admission) -> None:
        """Follows an event of the store that the admission has taken."""
        if isinstance(event, Snapshot):
            self._by_store = dict(event.refused)
        else:
            for key in event.cleared:
                self._by_store.pop(key, None)
            self._by_store |= event.refused
        if isinstance(event, Snapshot) or admission.concerned is None:
            concerned = {*self.keys, *self._by_store, *admission.refused}
        else:
            concerned = {*admission.concerned, *event.cleared, *event.refused}
        came = [key for key in sorted(concerned) if self._look(key, admission)]
        left = [key for key in sorted(concerned & self.keys.keys()) if self._refusal(key, admission) is None]
        for key in left:
            self._kinds[self.keys.pop(key).refusal.kind] -= 1
        if came or left:
            self._tell(came, left, admission)

    def _look(self, key: str, admission: Admission) -> bool:
        """Notes why a key is refused; says whether it was not before."""
        refusal, known = self._refusal(key, admission), self.keys.get(key)
        if refusal is None or (known and known.refusal == refusal):
            return False
        if known:
            self._kinds[known.refusal.kind] -= 1
        self._kinds[refusal.kind] += 1
        self.keys[key] = Refused(refusal, known.first_seen if known else self._clock())
        return known is None

    def _refusal(self, key: str, admission: Admission) -> Refusal | None:
        reason = self._by_store.get(key)
        if reason is None:
            return admission.refused.get(key)
        return reason if isinstance(reason, Refusal) else Refusal(Kind.UNREADABLE, reason)

    def _tell(self, came: Collection[str], left: Collection[str], admission: Admission) -> None:
        for key in list(came)[:_MOST_LINES]:
            refusal = self.keys[key].refusal
            log.warning("a key of the store is refused", key=key, kind=refusal.kind.value, reason=refusal.reason)
        for key in list(left)[:_MOST_LINES]:
            log.info("a key of the store is refused no longer", key=key, served=key in admission.leases)
        more = max(len(came) - _MOST_LINES, 0), max(len(left) - _MOST_LINES, 0)
        if any(more):
            log.warning("and more keys, which ListQuarantine shows", refused=more[0], refused_no_longer=more[1])
