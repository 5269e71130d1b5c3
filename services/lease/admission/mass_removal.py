"""Whether the removal of many leases at once is believed. Pure: time is an argument.

An empty listing, a wrong prefix, a store restored from an old backup and a mistaken `del --prefix` all look like the
end of every lease, and would empty every node. A node that leaves is everyday life, and its lease goes at once.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.overlap_index import OverlapIndex
from flannelette.services.core.leases.table import Removed, Upserted
from flannelette.services.lease.stores.store import Changed, Snapshot

WINDOW: Final = 2.0
"""Seconds in which removals count together."""
SINGLE: Final = 1
"""So many removals within a WINDOW are never held back, however few leases there are: a node leaves."""


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that the store has no more and the table keeps."""

    lease: Lease
    since: float


class MassRemovalGuard:
    """Lets events pass to a table: removals only within the limit, all else always and in order.

    * The limit: within any WINDOW no more than `share` of the leases that are known in it, or a SINGLE one: of two
      leases one, of nine four. What is beyond it is held back, and then every later removal, until the first are
      confirmed.
    * Of a store that was replaced, emptied or restored nothing passes: its nodes take their leases again one by one,
      and the last of them looks like a node that left.
    * An event is judged as a whole: removals that come together pass together or not at all.
    * A lease that appears again is held no longer. One whose subnets another lease takes over was not lost but
      replaced, and one that a node or an operator asked a lease service to remove was released: these go at once
      and do not count.
    * Leases that are deleted slowly, some at a time for minutes, pass: that looks like a cluster that shrinks. Only
      the store's access rights prevent it.
    """

    def __init__(self, share: float) -> None:
        self.held: dict[str, Held] = {}
        self._share = share
        self._passed: deque[tuple[float, int]] = deque()
        """When removals passed, and how many."""

    def take(self, event: Snapshot | Changed, table: Mapping[str, Lease], now: float) -> Snapshot | Changed:
        """What may pass of the event. `table` has the leases that all that passed before has made."""
        lost, present = _difference(table, event) if isinstance(event, Snapshot) else _net(table, event)
        for lease in present:
            self.held.pop(lease.name, None)
        lost = [lease for lease in lost if lease.name not in self.held]
        believed = self._replaced(table, present, lost) if lost or self.held else set()
        if isinstance(event, Changed) and event.released:
            believed |= event.released & {*self.held, *(lease.name for lease in lost)}
        for name in believed:
            self.held.pop(name, None)
        lost = [lease for lease in lost if lease.name not in believed]
        is_accident = isinstance(event, Snapshot) and event.is_other_history
        if self.held or is_accident or not self._may_pass(len(lost), len(table), now):
            self.held |= {lease.name: Held(lease, now) for lease in lost}
        elif lost:
            self._passed.append((now, len(lost)))
        if not self.held and not believed:
            return event
        if isinstance(event, Snapshot):
            return replace(event, leases={**event.leases, **{name: held.lease for name, held in self.held.items()}})
        gone = believed.union(lease.name for lease in lost if lease.name not in self.held)
        return replace(event, changes=(*map(Removed, sorted(gone)), *map(Upserted, present)))

    def confirm(self, listed: Collection[str], asked_at: float) -> tuple[Removed, ...]:
        """A complete listing, asked for at that time, has only these: what was held before and is not there goes."""
        return self._release(
            name for name, held in self.held.items() if name not in listed and held.since <= asked_at
        )

    def confirm_all(self) -> tuple[Removed, ...]:
        """An operator says that all of them may go."""
        return self._release(self.held)

    def _release(self, names: Iterable[str]) -> tuple[Removed, ...]:
        released = sorted(names)
        for name in released:
            del self.held[name]
        return tuple(map(Removed, released))

    def _may_pass(self, removals: int, known: int, now: float) -> bool:
        while self._passed and self._passed[0][0] <= now - WINDOW:
            self._passed.popleft()
        passed = sum(count for _, count in self._passed)
        together = passed + removals
        return not removals or together <= max(SINGLE, self._share * (known + passed))

    def _replaced(self, table: Mapping[str, Lease], present: Iterable[Lease], lost: Iterable[Lease]) -> set[str]:
        """The leases that are gone and whose subnets a lease has that nodes did not know with these subnets."""
        gone = (*lost, *(held.lease for held in self.held.values()))
        index = OverlapIndex((cidr, lease.name) for lease in gone for cidr in lease.cidrs)
        new = (lease for lease in present if (known := table.get(lease.name)) is None or known.cidrs != lease.cidrs)
        return {name for lease in new for cidr in lease.cidrs for name in index.owners(cidr)}


def _difference(table: Mapping[str, Lease], snapshot: Snapshot) -> tuple[list[Lease], list[Lease]]:
    """The leases of the table that the snapshot lacks, and those that it has."""
    lost = [lease for name, lease in table.items() if name not in snapshot.leases]
    return lost, list(snapshot.leases.values())


def _net(table: Mapping[str, Lease], event: Changed) -> tuple[list[Lease], list[Lease]]:
    """The leases of the table that are gone after all changes, and those that are there; in order of last changes."""
    after: dict[str, Lease | None] = {}
    for change in event.changes:
        after.pop(change.name, None)
        after[change.name] = change.after
    lost = [table[name] for name, lease in after.items() if lease is None and name in table]
    return lost, [lease for lease in after.values() if lease is not None]
