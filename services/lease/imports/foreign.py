"""The leases of other clusters that are in force beside the own network, and those that are refused. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Change, Removed, Upserted, changes_between
from flannelette.services.core.limits import MOST_LEASES
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.imports.policy import Import, overlapped, own_ranges
from flannelette.services.lease.stores.store import Changed, Snapshot

_FULL: Final = (
    "the import is full: imported leases may be at most half of --max-leases ({most}), and no more than own leases "
    "leave free; raise --max-leases if so many are meant"
)


@dataclass
class ClusterLeases:
    """The leases of one cluster: what it shows, and what of it is in force."""

    policy: Import
    shown: dict[str, Lease] = field(default_factory=dict)
    """Leases by their names there."""
    in_force: dict[str, Lease] = field(default_factory=dict)
    """Leases by their names here."""
    refused: dict[str, str] = field(default_factory=dict)
    """Why a lease or a range is not imported, by its name here."""
    crowded_out: set[str] = field(default_factory=set)
    """The names in `shown` that are refused for want of room alone."""
    has_answered: bool = False
    """Whether the cluster has answered this process. Before that, `shown` is what a file remembers, or empty."""


class Foreign:
    """The leases of all clusters beside an own network, in the broker's table (services/lease/watch/broker.py).

    Guarantees: no lease is in force outside of what its `--import` allows, nor one that overlaps the own network;
    each is judged for itself, and again when the own network changes. Before that is known, none is in force. At most
    half of the table is imported, and no more than own leases leave free, whoever writes those: a fuller table would
    be refused by every node. Where there is no room for all, the last ones by name are refused, but none that is in
    force; they come into force as soon as there is room.
    """

    def __init__(
        self,
        clusters: Sequence[ClusterLeases] = (),
        on_refusals: Callable[[Mapping[str, str]], None] = lambda refused: None,
        most: int = MOST_LEASES,
    ) -> None:
        """`most`: leases that the table may have."""
        self.clusters = clusters
        self._on_refusals = on_refusals
        """Called with the names that are newly refused, or for another reason, and the reasons."""
        self._most = most
        self.own_leases = 0
        """How many leases the own store has."""
        self.network: NetworkConfig | None = None
        """Configuration of the own network; None: not known yet."""
        self.leases: dict[str, Lease] = {}
        """All leases that are in force."""
        self._awaited_above: frozenset[str] = frozenset()

    @property
    def awaited(self) -> frozenset[str]:
        """The clusters whose leases are not known yet: here, or to the lease service above a relay."""
        here = (c.policy.name for c in self.clusters if self.network is None or not c.has_answered)
        return self._awaited_above.union(here)

    @property
    def ranges(self) -> tuple[Network, ...]:
        """Where imported leases may lie, whether or not there are any."""
        taken = own_ranges(self.network) if self.network else ()
        return tuple(r for each in self.clusters for r in each.policy.allow if not overlapped(r, taken))

    @property
    def claimed(self) -> tuple[Network, ...]:
        """What other clusters may claim of the own network: no node gets it."""
        taken = own_ranges(self.network) if self.network else ()
        return tuple(r for each in self.clusters for r in each.policy.allow if overlapped(r, taken))

    def merged(self, event: Snapshot | Changed, table: Mapping[str, Lease]) -> Snapshot | Changed:
        """An event of the own store, with what is imported; `table` is the broker's before it."""
        if event.awaited is not None:
            self._awaited_above = event.awaited
        if not self.clusters:
            return event
        if isinstance(event, Snapshot):
            self.own_leases = len(event.leases)
        else:
            names = {change.lease.name for change in event.changes if isinstance(change, Upserted)}
            self.own_leases += len(names - table.keys() - self.leases.keys())
        withdrawn, judged = self._withdrawn(), tuple[Change, ...]()
        if event.network is not None:
            self.network = event.network
            judged = tuple(change for each in self.clusters for change in self.judge(each))
            event = replace(event, network=replace(event.network, imported=self.ranges))
        if isinstance(event, Snapshot):
            return replace(event, leases={**event.leases, **self.leases}, awaited=self.awaited)
        return replace(event, changes=(*withdrawn, *event.changes, *judged), awaited=self.awaited)

    def admitted(self) -> tuple[Change, ...]:
        """What comes into force because there is room for it now."""
        crowded_out = (each for each in self.clusters if each.crowded_out and self._room > 0)
        return tuple(change for each in crowded_out for change in self.judge(each, set(each.crowded_out)))

    def _withdrawn(self) -> tuple[Change, ...]:
        """What goes out of force because own leases need the room."""
        names = sorted(self.leases)[max(self._room + len(self.leases), 0) :] if self._room < 0 else []
        for cluster in self.clusters if names else ():
            refused = dict(cluster.refused)
            for here in cluster.in_force.keys() & set(names):
                del cluster.in_force[here], self.leases[here]
                self._refuse_for_room(cluster, here)
            self._tell_refusals(cluster, refused)
        return tuple(map(Removed, names))

    @property
    def _room(self) -> int:
        return min(self._most // 2, self._most - self.own_leases) - len(self.leases)

    def judge(self, cluster: ClusterLeases, names: Iterable[str] | None = None) -> tuple[Change, ...]:
        """What it changes that these leases of a cluster (None: all) have changed, or the own network has."""
        if self.network is None:
            return ()
        taken, policy, refused = own_ranges(self.network), cluster.policy, dict(cluster.refused)
        if names is None:
            names = {*cluster.shown, *(name.partition("/")[2] for name in cluster.in_force)}
            cluster.refused = {
                str(cidr): f"--import {policy.name} allows {cidr}, which overlaps {own} of this cluster's own network"
                for cidr in policy.allow
                if (own := overlapped(cidr, taken))
            }
        after: dict[str, Lease] = {}
        judged = {f"{policy.name}/{name}": cluster.shown.get(name) for name in names}
        before = {here: cluster.in_force.pop(here) for here in judged.keys() & cluster.in_force.keys()}
        for here in before:
            del self.leases[here]
        room = self._room
        for here, lease in sorted(judged.items(), key=lambda each: (each[0] not in before, each[0])):
            cluster.refused.pop(here, None)
            cluster.crowded_out.discard(here.partition("/")[2])
            if lease is None:
                continue
            if reason := policy.refusal(lease, taken):
                cluster.refused[here] = reason
            elif len(after) >= room:
                self._refuse_for_room(cluster, here)
            else:
                after[here] = policy.imported(lease)
        cluster.in_force |= after
        self.leases |= after
        self._tell_refusals(cluster, refused)
        return changes_between(before, after)

    def _refuse_for_room(self, cluster: ClusterLeases, here: str) -> None:
        cluster.refused[here] = _FULL.format(most=self._most)
        cluster.crowded_out.add(here.partition("/")[2])

    def _tell_refusals(self, cluster: ClusterLeases, before: Mapping[str, str]) -> None:
        if new := {here: reason for here, reason in cluster.refused.items() if before.get(here) != reason}:
            self._on_refusals(new)


class OwnLeases(Mapping[str, Lease]):
    """The leases of a table without those that are imported. A view: it copies nothing."""

    def __init__(self, table: Mapping[str, Lease], imported: Mapping[str, Lease]) -> None:
        self._table = table
        self._imported = imported

    def __getitem__(self, name: str) -> Lease:
        if name in self._imported:
            raise KeyError(name)
        return self._table[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._table if name not in self._imported)

    def __len__(self) -> int:
        return max(len(self._table) - len(self._imported), 0)
