"""The leases of other clusters that are in force beside the own network, and those that are refused. Pure."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from services.core.family import Network
from services.core.leases.lease import Lease
from services.core.leases.table import Change, changes_between
from services.core.limits import MOST_LEASES
from services.core.network import NetworkConfig
from services.lease.imports.policy import Import, overlapped, own_ranges
from services.lease.stores.store import Changed, Snapshot

_FULL: Final = "imported leases have half of the table at most, and what own leases leave of it"


@dataclass
class ClusterLeases:
    """The leases of one cluster: what it shows, and what of it is in force."""

    policy: Import
    shown: dict[str, Lease] = field(default_factory=dict)
    """By their names there."""
    in_force: dict[str, Lease] = field(default_factory=dict)
    """By their names here."""
    refused: dict[str, str] = field(default_factory=dict)
    """The reason, by the name here; ranges that are not imported too."""
    has_answered: bool = False
    """Since the start of this process. What is shown before that is remembered, and may lack something."""


class Foreign:
    """The leases of all clusters beside an own network, in the broker's table (services.lease.watch.broker).

    Guarantees: no lease is in force outside of what its `--import` allows, nor one that overlaps the own network;
    each is judged for itself, and again when the own network changes. Before that is known, none is in force. At most
    half of the table is imported, and only where there is room: a fuller table would be refused by every node.
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
        """The own one."""
        self.leases: dict[str, Lease] = {}
        """All that are in force."""
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

    def merged(self, event: Snapshot | Changed) -> Snapshot | Changed:
        """An event of the own store, with what is imported."""
        if event.awaited is not None:
            self._awaited_above = event.awaited
        if not self.clusters:
            return event
        changes: tuple[Change, ...] = ()
        if isinstance(event, Snapshot):
            self.own_leases = len(event.leases)
        if event.network is not None:
            self.network = event.network
            changes = tuple(change for each in self.clusters for change in self.judge(each))
            event = replace(event, network=replace(event.network, imported=self.ranges))
        if isinstance(event, Snapshot):
            return replace(event, leases={**event.leases, **self.leases}, awaited=self.awaited)
        return replace(event, changes=(*event.changes, *changes), awaited=self.awaited)

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
        room = min(self._most // 2, self._most - self.own_leases) - len(self.leases)
        for here, lease in sorted(judged.items(), key=lambda each: each[0] not in before):  # those in force stay so
            cluster.refused.pop(here, None)
            if lease is None:
                continue
            if reason := policy.refusal(lease, taken):
                cluster.refused[here] = reason
            elif len(after) >= room:
                cluster.refused[here] = f"{_FULL}: if so many are meant, raise --max-leases ({self._most})"
            else:
                after[here] = policy.imported(lease)
        cluster.in_force |= after
        self.leases |= after
        if new := {here: reason for here, reason in cluster.refused.items() if refused.get(here) != reason}:
            self._on_refusals(new)
        return changes_between(before, after)


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
