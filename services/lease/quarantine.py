"""Keys of the store that are refused: they change nothing, and an operator can see them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from services.lease.store import Changed, Snapshot, StoreEvent

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a key is refused, and since when."""

    reason: str
    first_seen: float
    """Unix seconds."""


class Quarantine:
    """What is refused now, as the events of the store say."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.keys: dict[str, Refused] = {}
        self._clock = clock

    def take(self, event: StoreEvent) -> None:
        """Follows the events of the store; a newly refused key is logged once."""
        if isinstance(event, Snapshot):
            for key in self.keys.keys() - event.refused.keys():
                del self.keys[key]
            self._refuse(event.refused)
        elif isinstance(event, Changed):
            for key in event.cleared:
                self.keys.pop(key, None)
            self._refuse(event.refused)

    def _refuse(self, refused: Mapping[str, str]) -> None:
        for key, reason in refused.items():
            known = self.keys.get(key)
            if known is None:
                log.warning("a key of the store is refused and changes nothing", key=key, reason=reason)
            self.keys[key] = Refused(reason, known.first_seen if known else self._clock())
