"""Whether the removal of many leases at once is believed. Pure: time is an argument.

An empty listing, a wrong prefix, a store restored from an old backup or a mistaken `del --prefix` all look like the end
of every lease, and would empty every node. A few removals are everyday life and pass at once.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from services.core.lease import Lease
from services.core.table import Removed, Upserted
from services.lease.guard.overlaps import Overlaps
from services.lease.store import Changed, Snapshot

WINDOW: Final = 2.0
"""Seconds in which removals count together."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be removed within WINDOW: as many as either of these allows."""

    share: float = 0.5
    """Of the leases that were known when it began."""
    fewer_than: int = 10
    """However few leases there are: below this nothing is held back."""

    def allow(self, removals: int, known: int) -> bool:
        """Whether so many of these may go."""
        return removals < self.fewer_than or removals <= self.share * known


class Guard:
    """Lets events pass to the table; removals only within the limits.

    * Within any WINDOW no more leases go unconfirmed than the limits allow; leases that others take the place of (their
      subnets overlap) do not count, and are never held back.
    * While removals are held back, later ones are too; all else passes. A lease that is told again, or whose place
      another takes, is held no longer.
    * Nothing is held before the table has had its first snapshot.
    """

    def __init__(self, limits: Limits) -> None:
        self.held: dict[str, float] = {}
        """Leases that the store has no more and the table still has, by name, with the time since when."""
        self._limits = limits
        self._gone: deque[tuple[float, int]] = deque()
        """When removals passed, and how many."""
        self._places = Overlaps()
        """Where the held ones are."""

    def take(self, event: Snapshot | Changed, table: Mapping[str, Lease], now: float) -> Snapshot | Changed:
        """What may pass of the event, given the leases of the table that all earlier ones made."""
        if isinstance(event, Snapshot):
            back, news, lost = _difference(table, event.leases)
        else:
            back, news, lost = _net(event)
        for name in back & self.held.keys():
            self._let_go(name, table)
        replaced = self._hold_back(lost, news, table, now)
        if isinstance(event, Snapshot):
            return replace(event, leases={**event.leases, **{name: table[name] for name in self.held}})
        ...
