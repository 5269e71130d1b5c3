"""The pipeline from a store to the lease table: filter, quarantine, flap guard, mass-removal guard, then the broker.

A lease is untrusted data: nodes would route a subnet outside the network, which may have real hosts. Such a lease
stays in the store and reaches no node. Which of two leases that claim the same counts is decided on the nodes
(services/core/leases/conflicts.py); both are served.

An empty listing, a wrong prefix, a store restored from an old backup and a mistaken `del --prefix` all look like the
end of every lease, and would empty every node. A node that leaves is everyday life, and its lease goes at once. What
the guard holds back is confirmed by a second listing of the store, or by an operator. The table is kept in a file,
with which the next process compares the first snapshot of its store: without the file, a lease service that is
restarted while its store is empty would tell every node that there are no leases.

Each change of a lease goes to every node, and into its kernel. So a node that changes its own without end would keep
all the others at work: beyond what a node in order ever needs, its last value stays (ADR 68).
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import Exhausted, FlanneletteError, NotFound, NotYet, Unavailable
from flannelette.services.core.family import Network, family_of
from flannelette.services.core.formats.text import count
from flannelette.services.core.frozen import frozen
from flannelette.services.core.ipam import is_own, publishes_same
from flannelette.services.core.leases.conflicts import OverlapIndex
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.leases.network_moves import beside
from flannelette.services.core.leases.table import Change, Removed, StoreStatus, Table, Upserted, apply
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease import metrics
from flannelette.services.lease.events import (
    LeaseEventKind,
    LeaseJournal,
    content,
    log_network,
    tell_ended,
    tell_held,
)
from flannelette.services.lease.stores.store import (
    Changed,
    LostLease,
    Refusal,
    RefusalKind,
    Snapshot,
    Store,
    StoreEvent,
)
from flannelette.services.lease.watch import Broker
from flannelette.services.runtime.cache import records_of_pieces, table_of
from flannelette.services.runtime.events import Subject
from flannelette.services.runtime.older_state import lease_table
from flannelette.services.runtime.state import RecordFile, keep
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()


class LeaseFilter:
    """Follows the events of a store, and passes on what is served.

    * What is served depends on what the store holds now, not on the order of its changes.
    * Outside the network is a lease with a subnet that does not lie in the network of its family (or is all of it),
      or with no subnet in an enabled family. A lease that lacks a family, or has one that is not enabled, is served:
      clusters change their families node by node. Without a network nothing is outside.
    * A lease outside that a node holds, and that is older than the configuration, is served: its node keeps it until
      an operator says otherwise (ADR 25). The subnets of such leases go with the network, as `beside`. So is one that
      this node had in the table before: its key may have been lost or written again since.
    """

    def __init__(self, network: NetworkConfig | None = None) -> None:
        self.leases: dict[str, Lease] = {}
        """All that the store holds."""
        self.refused: dict[str, Refusal] = {}
        """Leases of the store that are not served, and why."""
        self.changed: frozenset[str] | None = None
        """The leases that the last event concerned; None: all."""
        self._network = network
        self._ranges: dict[int, tuple[Network, int, int]] = {}
        """The network with its first and last address, by IP version."""
        self._outsiders: set[str] = set()
        """Leases outside the network that are served all the same."""
        self._admitted: set[tuple[str, tuple[Network, ...]]] = set()
        """The nodes that have held one of these, with its subnets: they may write it again."""
        self._before: Mapping[str, Lease] = {}
        """The lease table before the event."""
        self._is_beside_due = False
        """`beside` may have changed since it was last passed on."""
        self._is_network_good = True
        """The store has no newer configuration that cannot be used."""

    def take(self, event: Snapshot | Changed, table: Mapping[str, Lease] | None = None) -> Snapshot | Changed:
        """The same event with what is served, in its order. A change that changes nothing is left out.

        `table` has the leases that nodes know up to now.
        """
        self.changed, self._before = None, table or {}
        if event.network is not None:
            before = self._network.beside if self._network else ()
            event = replace(event, network=replace(event.network, beside=before))
        self._is_network_good = event.network is not None or (self._is_network_good and not event.network_error)
        if isinstance(event, Snapshot):
            self.leases = dict(event.leases)
            self._network = event.network or self._network
            self._judge_all()
            return self._with_beside(replace(event, leases=self.served()))
        if event.network is not None and event.network != self._network:
            return self._with_beside(replace(event, changes=self._with_network(event.network, event.changes)))
        return self._with_beside(replace(event, changes=self._with_changes(event.changes)))

    def served(self) -> dict[str, Lease]:
        """What is served now."""
        refused = self.refused
        return {name: lease for name, lease in self.leases.items() if name not in refused}

    def _with_beside(self, event: Snapshot | Changed) -> Snapshot | Changed:
        """The same, with what is beside the network, if that or the network has changed."""
        if self._network is None or not (self._is_beside_due or event.network):
            return event
        self._is_beside_due = False
        cidrs = [cidr for name in self._outsiders for cidr in self.leases[name].cidrs]
        network = replace(self._network, beside=beside(self._network, cidrs))
        has_changed = network != self._network
        self._network = network
        if event.network is not None or (has_changed and self._is_network_good):
            return replace(event, network=network)
        return event

    def _with_network(self, network: NetworkConfig, changes: Iterable[Change]) -> tuple[Change, ...]:
        before = self.served()
        self._network = network
        self._admitted.clear()
        apply(changes, self.leases)
        self._judge_all()
        after = self.served()
        return _changes(before, {name: after.get(name) for name in (*before, *after)})

    def _with_changes(self, changes: Sequence[Change]) -> tuple[Change, ...]:
        before: dict[str, Lease | None] = {}
        for change in changes:
            name = change.name
            before.setdefault(name, self._served(name))
            self.leases.pop(name, None)
            self.refused.pop(name, None)
            if name in self._outsiders:
                self._outsiders.remove(name)
                self._is_beside_due = True
            if (lease := change.after) is not None:
                self.leases[name] = lease
                self._judge(lease)
        self.changed = frozenset(before)
        return _changes(before, {name: self._served(name) for name in before})

    def _judge_all(self) -> None:
        self._ranges = {
            n.cidr.version: (n.cidr, int(n.cidr.network_address), int(n.cidr.broadcast_address))
            for n in (self._network.families if self._network else ())
        }
        self._outsiders, self._is_beside_due, self.refused = set(), True, {}
        for lease in self.leases.values():
            self._judge(lease)

    def _judge(self, lease: Lease) -> None:
        """Refuses a lease outside the network, or records that it is served nevertheless."""
        reason = "" if lease.cluster else self._outside(lease)  # a relay gets them imported already
        if not reason:
            return
        revision, claim = self._network.revision if self._network else 0, (lease.node, lease.cidrs)
        known = self._before.get(lease.name)
        was_served = claim in self._admitted or (known is not None and claim == (known.node, known.cidrs))
        is_older = not revision or lease.claim_order < revision
        if not lease.node or lease.is_idle:
            pass  # without a node, nobody keeps it
        elif is_older or was_served:
            self._admitted.add(claim)
            self._outsiders.add(lease.name)
            self._is_beside_due = True
            return
        self.refused[lease.name] = Refusal(RefusalKind.OUTSIDE_NETWORK, reason)

    def _outside(self, lease: Lease) -> str:
        """Why a lease lies outside the network; empty: it does not."""
        is_enabled = not self._ranges
        for subnet in lease.subnets:
            cidr = subnet.cidr
            found = self._ranges.get(cidr.version)
            if found is not None:
                is_enabled = True
                whole, first, last = found
                if cidr.prefixlen <= whole.prefixlen or not first <= int(cidr.network_address) <= last:
                    where = f"subnet {cidr} lies outside the network {whole}"
                    return f"{where}: release it, or correct the network"
        family = family_of(lease.subnets[0].cidr)
        return "" if is_enabled else f"the network has no {family}: release it, or enable {family}"

    def _served(self, name: str) -> Lease | None:
        return None if name in self.refused else self.leases.get(name)


def _changes(before: Mapping[str, Lease | None], after: Mapping[str, Lease | None]) -> tuple[Change, ...]:
    """What is different, in the order of `after`."""
    differing = ((name, lease) for name, lease in after.items() if lease != before.get(name))
    return tuple(Removed(name) if lease is None else Upserted(lease) for name, lease in differing)


AT_ONCE: Final = 10
"""Changes of one node's lease that pass at once, after a time without any."""
SECONDS_A_CHANGE: Final = 3.0
"""Seconds in which it may change once more; a node repairs its own lease no more often (20 times a minute). So
long the last value waits, at most, once the node has calmed down."""
_NAMED_SECONDS: Final = 60.0
"""Seconds for which a node is named since a change of its lease had to wait, or was refused."""
_FEWEST: Final = 1_024
"""Nodes that have changed of late, of which nobody is looked for who has not changed for long."""


class FlapGuard:
    """Lets changes of leases pass to a table, of each node AT_ONCE and then one in SECONDS_A_CHANGE; others wait.

    * A change is another public address, MAC, key or backend of a lease, or a lease that comes: what goes to every
      node. A removal passes, and so does a reservation that nobody uses: that is an operator's.
    * While a change waits, the table keeps what it has. Of several changes of one lease the last waits.
    * A lease without a node is counted for itself.
    """

    def __init__(self, cluster: str = "") -> None:
        """`cluster`: the leases are imported from there."""
        self.waiting: dict[str, Lease] = {}
        """Leases as the store has them, and as the table is to have them, by name."""
        self._full_at: dict[str, float] = {}
        """When a node will have all of its changes again, on a clock; absent: it has."""
        self._prune_at = _FEWEST
        self._of = cluster and f"{cluster}/"
        self._named: dict[str, tuple[float, int]] = {}
        """When a change of a node last had to wait or was refused, and how many were, oldest first."""

    def take(self, event: Snapshot | Changed, table: Mapping[str, Lease], now: float) -> Snapshot | Changed:
        """What may pass of the event. `table` has the leases that all that passed before has made."""
        if isinstance(event, Snapshot):
            before, self.waiting = self.waiting, {}
            kept = {
                name: lease
                for name, lease in event.leases.items()
                if not self._passes(table.get(name), lease, now, before.get(name))
            }
            self.waiting = kept
            if not kept:
                return event
            leases = {name: lease for name, lease in event.leases.items() if name not in kept}
            return replace(event, leases={**leases, **{name: table[name] for name in kept if name in table}})
        passed = tuple(self._passing(event.changes, table, now))
        return event if len(passed) == len(event.changes) else replace(event, changes=passed)

    def pass_due(self, table: Mapping[str, Lease], now: float) -> tuple[Upserted, ...]:
        """What has waited long enough."""
        waiting = list(self.waiting.items())
        due = {name for name, lease in waiting if self._passes(table.get(name), lease, now, lease)}
        return tuple(Upserted(self.waiting.pop(name)) for name in due)

    def require_calm(self, node: str, now: float) -> None:
        """Raises Exhausted: the node changes its lease too often."""
        if (seconds := self._seconds_left(node, now)) > 0:
            self._name(node, now)
            raise Exhausted(
                f"node {node} changes its MAC or public address too often: peers keep its last one, and it may "
                f"change again in {seconds:.0f} s; look for what changes it"
            )

    def findings(self, now: float) -> Iterator[Condition]:
        """Names the node whose changes waited most often within the last minute."""
        self._forget(now)
        if self._named:
            count, node = max((count, node) for node, (_, count) in self._named.items())
            others = len(self._named) - 1
            more = f" and {others:,} other{'s' if others > 1 else ''}" if others else ""
            cure = "" if self._of else f"flannelette events {node}"
            yield found("lease.flapping", node=f"{self._of}{node}", more=more, count=f"{count:,}", cure=cure)

    def _passing(self, changes: Iterable[Change], table: Mapping[str, Lease], now: float) -> Iterator[Change]:
        seen: dict[str, Lease | None] = {}
        for change in changes:
            name, after = change.name, change.after
            before = seen[name] if name in seen else table.get(name)
            if after is None or self._passes(before, after, now):
                self.waiting.pop(name, None)
                seen[name] = after
                yield change
            else:
                self.waiting[name] = after

    def _passes(self, before: Lease | None, lease: Lease, now: float, waited: Lease | None = None) -> bool:
        """Whether the lease may take the place of the one before; counts it. `waited`: what is counted already."""
        if lease.is_idle or (before is not None and content(before) == content(lease)):
            return True
        who = lease.name if lease.cluster else lease.node or lease.name
        if self._seconds_left(who, now) > 0:
            if lease != waited:
                self._name(who, now)
            return False
        if len(self._full_at) >= self._prune_at:
            self._full_at = {each: when for each, when in self._full_at.items() if when > now}
            self._prune_at = max(_FEWEST, 2 * len(self._full_at))
        self._full_at[who] = max(self._full_at.get(who, now), now) + SECONDS_A_CHANGE
        return True

    def _seconds_left(self, who: str, now: float) -> float:
        """Seconds until its next change may pass; 0 or less: now."""
        return self._full_at.get(who, now) - now - (AT_ONCE - 1) * SECONDS_A_CHANGE

    def _name(self, who: str, now: float) -> None:
        self._forget(now)
        metrics.HELD_CHANGES.inc()
        if who not in self._named:
            told = "a node changes its lease too often; peers keep its last value for a while"
            log.warning(told, node=f"{self._of}{who}")
        _, count = self._named.pop(who, (now, 0))
        self._named[who] = now, count + 1

    def _forget(self, now: float) -> None:
        while self._named and now - self._named[oldest := next(iter(self._named))][0] > _NAMED_SECONDS:
            del self._named[oldest]


WINDOW: Final = 2.0
"""Seconds in which removals count together."""
SINGLE: Final = 1
"""So many removals within a WINDOW are never held back, however few leases there are: a node leaves."""


@frozen
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

    def kept(self, what: str) -> str:
        """What happened to the leases that are held back, as `3 leases WHAT and are kept`."""
        return f"{count(len(self.held), 'lease')} {what} and {'is' if len(self.held) == 1 else 'are'} kept"

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


_MOST_LINES: Final = 20
"""Lines about single keys in the log within a WINDOW, at most: a wrong network refuses every lease, a program may
write thousands."""
_WINDOW: Final = 60.0
"""Seconds within which these lines are counted."""
_MOST_NAMES: Final = 5
"""Names of keys in a line that sums up many, at most."""


@frozen
class Refused:
    """Why a key is refused, and since when."""

    refusal: Refusal
    first_seen: float
    """When the key was first seen refused, in Unix seconds."""


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
        """When the present window began."""
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


_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks whether what waits may pass."""
_LISTING_SECONDS: Final = 60.0
"""Seconds for the second listing; then it cannot be had."""
_RETRY_SECONDS: Final = 5.0
"""Seconds to wait after a second listing that could not be had."""


@frozen
class GuardSettings:
    """How careful the guard is."""

    share: float = 0.5
    """Share of the leases that may go at once; 1 switches the guard off."""
    seconds: float = 30.0
    """Seconds from the first removal that is held back to the second listing: time for nodes to take their leases
    again."""


class StorePipeline:
    """Every event of the store goes through here: `follow` for ever, `take` for one.

    Removals stay held back while the store is away, while its second listing has the leases, and while the store has
    no network configuration: nodes, which shall take their leases again, could not. The first snapshot is compared
    with the table that `recall` reads, which the process before this one has left (SnapshotCache).
    """

    def __init__(
        self,
        store: Store,
        broker: Broker,
        settings: GuardSettings,
        *,
        recall: Callable[[Mapping[str, Lease]], Table] = lambda served: Table(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.quarantine = Quarantine(clock, broker.journal)
        self.leases = LeaseFilter()
        self._guard = MassRemovalGuard(settings.share)
        self._flaps = FlapGuard()
        self._recall = recall
        self._store = store
        self._broker = broker
        self._seconds = settings.seconds
        self._clock = clock
        self._holding = asyncio.Event()
        self._has_waiting = asyncio.Event()
        """Set while the flap guard has a change that waits."""
        self._due = 0.0
        """When to list a second time, on the loop's clock."""
        self._reason_to_wait = ""
        """Why the last second listing did not end it."""
        self._held_together = 0
        """Removals that were held back since the first of them."""
        self._kept: set[str] = set()
        """Leases whose keys the store refuses, and of which it does not know what they held."""
        self._overwritten: dict[str, LostLease] = {}
        """Leases that the table keeps as their nodes have published them, by refused key."""

    @property
    def held(self) -> list[str]:
        """Names of the leases whose removal is held back, sorted."""
        return sorted(self._guard.held)

    @property
    def held_since(self) -> float | None:
        """Unix time when the first of them was held back."""
        held = self._guard.held.values()
        return self._clock() - (self._now() - min(h.since for h in held)) if held else None

    @property
    def held_reason(self) -> str:
        """What they wait for, one sentence; empty when none is held."""
        if not self._guard.held:
            return ""
        what = self._guard.kept(f"vanished from the {self._store.kind} store at once")
        again = f"the store is listed again in {max(round(self._due - self._now()), 0)} s"
        doubt = f"; {self._reason_to_wait}" if self._reason_to_wait else ""
        return f"{what}{doubt}; {again}, unless an operator confirms the removal"

    async def follow(self) -> None:
        """Takes what happens in the store, for ever."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            group.create_task(self._confirm_in_time())
            group.create_task(self._pass_in_time())

    def take(self, event: StoreEvent) -> None:
        """One event of the store."""
        if isinstance(event, StoreStatus):
            self._broker.take(event)
            return
        if event.overrides is not None:
            self._broker.choose(event.overrides)
        event = self._with_kept(event)
        table, held = self._broker.table, set(self._guard.held)
        network, network_error = _source(table), table.network_error
        known: Mapping[str, Lease] | None = self._broker.own if table.synced else None
        served = self.leases.take(event, known)
        if known is None:
            known = self._leases_before(served)
            if known and self.leases.refused:
                served = self.leases.take(event, known)
        else:
            served = self._flaps.take(served, known, self._now())
            if self._flaps.waiting:
                self._has_waiting.set()
        self.quarantine.take(event, self.leases)
        self._broker.take(self._guard.take(served, known, self._now()))
        self._note_overwritten(event)
        if held or self._guard.held:
            asked_for = event.released & held - self._guard.held.keys() if isinstance(event, Changed) else ()
            metrics.GUARDED_REMOVALS.labels("released").inc(len(asked_for))
            self._count_held(held, confirmed=len(asked_for))
        if (_source(table), table.network_error) != (network, network_error):
            log_network(table)
            if network_error and not table.network_error:
                self._wait(self._seconds, "")  # only from now on can nodes take their leases again

    def confirm(self) -> list[str]:
        """An operator says that what is held back may go; returns the names. Raises NotYet: nothing is."""
        if not self._guard.held:
            raise NotYet("no removal is held back: there is nothing to confirm")
        held = set(self._guard.held)
        return self._remove(self._guard.confirm_all(), held, by="operator")

    async def discard(self, key: str) -> None:
        """Deletes a refused key from the store. Raises NotFound, and what Store.discard raises."""
        refused = self.quarantine.keys.get(key)
        if refused is None:
            raise NotFound(f"the key {key} is not quarantined: ListQuarantine lists the keys that are")
        reason = refused.refusal.reason
        await self._store.discard(key, self.leases.leases[key] if key in self.leases.refused else reason)
        log.warning("an operator deleted a refused key from the store", key=key, reason=reason)

    def findings(self) -> Iterator[Condition]:
        """What an operator must know about what the store tells."""
        return self._flaps.findings(self._now())

    def require_calm(self, request: LeaseRequest) -> None:
        """Raises Exhausted: the request changes the lease of its node, which has changed too often."""
        published = {(part.public_address, part.data) for part in request.parts}
        for lease in self._broker.leases_by_node.of(request.node).values():
            same = {(subnet.public_address, subnet.data) for subnet in lease.subnets}
            if lease.backend_type == request.backend_type and same == published:
                return
        self._flaps.require_calm(request.node, self._now())

    def without_held(self, request: LeaseRequest) -> LeaseRequest:
        """The request, but for subnets that the store has free and others use: of leases that are held back, and of
        other clusters.

        Those of other nodes are excluded; what the node itself has lost goes with the request.
        """
        held = [lease for name in self._guard.held if (lease := self._broker.table.leases.get(name))]
        parts = request.parts
        others = [lease for lease in held if lease.node != request.node and not publishes_same(lease, parts)]
        own = next((lease.cidrs for lease in held if is_own(lease, request.node, parts)), ())
        excluded = (*(cidr for lease in others for cidr in lease.cidrs), *self._broker.foreign.claimed)
        return replace(request, excluded=excluded, lost=own)

    def _with_kept(self, event: Snapshot | Changed) -> Snapshot | Changed:
        """The event, where the store refuses keys of which it does not know what they held, and we do: that stays.

        The table or that of the process before this one has it. It goes when the key does.
        """
        if isinstance(event, Changed):
            told = {change.lease.name for change in event.changes if isinstance(change, Upserted)}
            gone = (self._kept & event.cleared) - told
            self._kept -= event.cleared
            return replace(event, changes=(*event.changes, *map(Removed, sorted(gone)))) if gone else event
        refused = {key for key, reason in event.refused.items() if isinstance(reason, str)} - event.leases.keys()
        before: Mapping[str, Lease] = {}
        if refused:
            before = self._broker.table.leases if self._broker.table.synced else self._leases_before(event)
        kept = {name: before[name] for name in refused if name in before}
        self._kept = set(kept)
        return replace(event, leases={**event.leases, **kept}) if kept else event

    def _note_overwritten(self, event: Snapshot | Changed) -> None:
        """Keys that the store itself refuses, beside a lease in the table: what they say is not their node's."""
        now, leases = self._now(), self._broker.table.leases
        names = {
            key: key.removeprefix("holders/") for key, reason in event.refused.items() if isinstance(reason, str)
        }
        told = {key: LostLease(name, now) for key, name in names.items() if name in leases and leases[name].node}
        kept = event.refused.keys() if isinstance(event, Snapshot) else self._overwritten.keys() - event.cleared
        if told or self._overwritten.keys() - kept:
            self._overwritten = {key: lost for key, lost in self._overwritten.items() if key in kept} | told
            self._publish_lost()

    def _publish_lost(self) -> None:
        """Publishes the leases that the table has, and that the store has lost or has in another form than the node
        published.
        """
        found = [LostLease(name, held.since) for name, held in self._guard.held.items()]
        found += self._overwritten.values()
        nodes = {
            name: lease.node
            for name in (lost.name for lost in found)
            if (lease := self._broker.table.leases.get(name))
        }
        self._broker.lose({nodes[lost.name]: lost for lost in found if nodes.get(lost.name)})

    def _leases_before(self, event: Snapshot | Changed) -> Mapping[str, Lease]:
        """Returns the leases of a process before this one, if it served the same network from the same
        kind of store.
        """
        if not isinstance(event, Snapshot):
            return {}
        before = self._recall(event.leases)
        is_same = before.store is not None and before.store.kind == self._store.kind
        if before.network and event.network:
            is_same = is_same and before.network.source == event.network.source
        return {name: lease for name, lease in before.leases.items() if not lease.cluster} if is_same else {}

    async def _watch(self) -> None:
        async for event in self._store.watch():
            self.take(event)

    async def _pass_in_time(self) -> None:
        while True:
            await self._has_waiting.wait()
            await asyncio.sleep(_LOOK_SECONDS)
            if due := self._flaps.pass_due(self._broker.own, self._now()):
                held = set(self._guard.held)
                self._broker.take(self._guard.take(Changed(due), self._broker.own, self._now()))
                self._count_held(held)
            if not self._flaps.waiting:
                self._has_waiting.clear()

    async def _confirm_in_time(self) -> None:
        while True:
            await self._holding.wait()
            if (wait := self._due - self._now()) > 0:
                await asyncio.sleep(wait)
            else:
                await self._list_again()

    async def _list_again(self) -> None:
        asked_at = self._now()
        try:
            async with asyncio.timeout(_LISTING_SECONDS):
                listed = await self._store.relist()
        except (FlanneletteError, TimeoutError) as error:
            reason = str(error) or "the store does not answer"
            self._wait(_RETRY_SECONDS, f"the second listing failed: {reason}")
            return
        if listed.network is None:
            reason = "no node can take its lease again, since the store has no network configuration that can be used"
            self._wait(self._seconds, reason)
            return
        again = LeaseFilter(self._broker.table.network)
        again.take(listed, self._broker.table.leases)
        there = again.served().keys() | listed.refused.keys()
        before = set(self._guard.held)
        self._remove(self._guard.confirm(there, asked_at), before, by="listing")
        disagrees = any(name in there for name, held in self._guard.held.items() if held.since <= asked_at)
        self._wait(self._seconds, "the second listing has some of them" if disagrees else "")

    def _wait(self, seconds: float, doubt: str) -> None:
        self._due = self._now() + seconds
        if self._guard.held and doubt and doubt != self._reason_to_wait:
            log.warning("removals stay held back", leases=len(self._guard.held), reason=doubt)
            tell_held(self._broker.journal, self._guard.held, doubt)
        self._reason_to_wait = doubt

    def _remove(self, removed: tuple[Removed, ...], held: Set[str], *, by: str) -> list[str]:
        if removed:
            log.warning("removals that were held back are carried out", leases=len(removed), confirmed_by=by)
            metrics.GUARDED_REMOVALS.labels(f"confirmed_by_{by}").inc(len(removed))
            tell_ended(self._broker.journal, [change.name for change in removed], f"confirmed by {by}")
            self._broker.take(Changed(removed))
        self._count_held(held, confirmed=len(removed))
        return [change.name for change in removed]

    def _count_held(self, before: Set[str], confirmed: int = 0) -> None:
        """What is held back has changed, perhaps."""
        held = self._guard.held.keys()
        if held != before:
            self._publish_lost()
        metrics.GUARDED_REMOVALS.labels("held").inc(len(held - before))
        self._held_together = len(held - before) + (self._held_together if before else 0)
        metrics.GUARDED_REMOVALS.labels("returned").inc(len(before - held) - confirmed)
        if held and not before:
            self._due, self._reason_to_wait = self._now() + self._seconds, ""
            self._holding.set()
            log.warning(
                "many leases vanished from the store at once; they stay until a second listing confirms the removal",
                leases=len(held),
                of=len(self._broker.table.leases),
                asked_again_in=self._seconds,
            )
            tell_held(self._broker.journal, held, self.held_reason)
        elif before and not held:
            self._holding.clear()
            if not confirmed:
                log.info("no removal is held back any more", of=self._held_together)
                tell_ended(self._broker.journal, before, "the store has the leases again, or they were released")

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _source(table: Table) -> str:
    return table.network.source if table.network else ""


_LONGEST: Final = 86_400.0
"""Seconds that a table is worth remembering: as long as flannel's leases live."""
_PAUSE_PER_LEASE: Final = 0.001
"""Least seconds between two writes for each lease, so that writes take a few thousandths of a core."""
_CONFIRM: Final = 3_600.0
"""Seconds from one write to the next one while nothing changes: the table is still worth remembering."""
_KIND: Final = "lease.table"


class SnapshotCache:
    """One file of the records of a table. Best effort.

    A file that is missing, damaged or older than a day counts as empty; without a lease whose record is damaged. The
    file is replaced as a whole, and never before a first complete snapshot.
    """

    def __init__(self, path: Path, broker: Broker) -> None:
        self._path = path
        self._broker = broker
        self._written: object = None
        """The version in the file."""
        self.file = RecordFile(path, _KIND, older=lease_table, is_synced=False)

    def recall(self, served: Mapping[str, Lease]) -> Table:
        """The table that a process before this one has left; without leases if there is none. For the start.

        A lease that is `served` now as well is taken from there: only what is gone has to be decoded.
        """
        with suppress(OSError):
            for left in self._path.parent.glob(f".{self._path.name}.*"):  # releases before 0.3 left some for ever
                left.unlink()
        with suppress(OSError):  # said when the file is read
            if time.time() - self._path.stat().st_mtime >= _LONGEST:
                return Table()
        return table_of(self.file, served)

    async def run(self) -> None:
        """Writes the table whenever it has changed, until the broker is stopped."""
        with suppress(Unavailable):
            await keep(
                self._news,
                self.write,
                pause=lambda: _PAUSE_PER_LEASE * len(self._broker.table.leases),
                every=_CONFIRM,
            )

    async def write(self) -> bool:
        """Writes the table, if it is complete. Call it at the end of the process too."""
        table, version = self._broker.table, self._version()
        records = records_of_pieces(table.network, self._broker.pieces.of_all(), table.store)
        if table.synced and not await self.file.write_slowly(records):
            return False
        self._written = version
        return True

    async def _news(self) -> None:
        while self._written == self._version():
            await self._broker.notifier.next()

    def _version(self) -> object:
        return self._broker.table.revision, self._broker.table.synced
