"""The lease table as a stream of steps, and the fold that rebuilds it. Protocol without IO.

Beside the leases, steps have overrides of public addresses that operators set for nodes in the store.
"""

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar, Final, TypeAlias

from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.network import NetworkConfig


@frozen
class PublicIpOverride:
    """The public address of a node in one family, as an operator wrote it; the text may be no address."""

    version: int
    """IP version of the address: 4 or 6."""
    text: str
    source: str
    """Where it is written, for people."""


PublicIpOverrides: TypeAlias = tuple[PublicIpOverride, ...]
"""The overrides of one node: at most one for each family, IPv4 first."""

NO_OVERRIDES: Final[Mapping[str, PublicIpOverrides]] = MappingProxyType({})


@frozen
class NodeOverrides:
    """A message with the overrides of nodes, by node; an empty tuple means that the node has none any more."""

    nodes: Mapping[str, PublicIpOverrides]
    complete: bool = False
    """A node that is not named has none; otherwise it keeps what it had."""

    def after(self, before: Mapping[str, PublicIpOverrides]) -> Mapping[str, PublicIpOverrides]:
        """The overrides after this message, without nodes that have none."""
        merged = self.nodes if self.complete else {**before, **self.nodes}
        return {node: overrides for node, overrides in merged.items() if overrides}


def overrides_between(
    before: Mapping[str, PublicIpOverrides], now: Mapping[str, PublicIpOverrides]
) -> NodeOverrides | None:
    """The message that turns `before` into `now`; None if they are equal."""
    if before is now:
        return None
    changed = {node: overrides for node, overrides in now.items() if before.get(node) != overrides}
    gone: Mapping[str, PublicIpOverrides] = {node: () for node in before if node not in now}
    return NodeOverrides({**gone, **changed}) if gone or changed else None


@frozen
class Upserted:
    """The lease is new or has changed; it replaces the one of the same name."""

    lease: Lease

    @property
    def name(self) -> str:
        """The name of the lease."""
        return self.lease.name

    @property
    def after(self) -> Lease:
        """The lease of this name after the change."""
        return self.lease


@frozen
class Removed:
    """The lease of this name is gone."""

    name: str
    after: ClassVar[None] = None
    """The lease of this name after the change: none."""


Change: TypeAlias = Upserted | Removed


def apply(changes: Iterable[Change], leases: dict[str, Lease]) -> None:
    """Changes leases, which stand by their names, in the order of the changes."""
    for change in changes:
        if (lease := change.after) is None:
            leases.pop(change.name, None)
        else:
            leases[change.name] = lease


KUBE: Final = "kube"
"""The kind of the store whose leases go by the names of the nodes: they end with these only."""


@frozen
class StoreStatus:
    """Whether the store behind a lease service answers."""

    kind: str
    connected: bool
    error: str = ""


@frozen
class Step:
    """One step of the stream, applied in the order of its fields (WatchLeasesResponse says the guarantees)."""

    reset: bool = False
    changes: tuple[Change, ...] = ()
    network: NetworkConfig | None = None
    network_error: str = ""
    store: StoreStatus | None = None
    synced: bool = False
    cursor: str = ""
    lost: str = ""
    """A lease of the node that asked: the store has it no more, the table keeps it for a while. Comes alone."""
    awaited: frozenset[str] | None = None
    """Clusters whose leases the sender does not know yet: the receiver keeps what it has of them. None: unchanged."""
    overrides: NodeOverrides | None = None
    """Changed overrides of public addresses. A step of its own in a stream, part of the table in a file."""


@dataclass(slots=True)
class Table:
    """The table as far as it is known; `fold` takes it one step further.

    * Between `reset` and `synced` old leases stay, new ones are there already: nothing is removed early, also
      not by a removal in a step between.
    * A stream that breaks off there has no cursor to resume from, so that the next one starts over.
    * A removal, once synced, is final only until the next upsert: the order of changes is kept.
    * What is known of a cluster that the sender awaits stays past `synced`, until a step awaits it no more: what the
      sender has not told by then goes.
    """

    leases: dict[str, Lease] = field(default_factory=dict)
    network: NetworkConfig | None = None
    network_error: str = ""
    store: StoreStatus | None = None
    synced: bool = False
    """The table is complete up to `cursor`. Stays true through a later reset: the old table is in force."""
    cursor: str = ""
    """Where to resume; empty while a reset is staged."""
    revision: int = 0
    """How many steps have changed a lease or a choice, or brought a network configuration."""
    lost: str = ""
    """The own lease that the store has lost, by the last step; see Step."""
    overrides: Mapping[str, PublicIpOverrides] = field(default_factory=dict)
    """Overrides of public addresses that operators have set, by node."""
    awaited: frozenset[str] = frozenset()
    """The clusters whose leases the sender does not know yet, or not all of them."""
    _is_staged: bool = False
    """A reset has begun and is not complete."""
    _unconfirmed: set[str] = field(default_factory=set)
    """The names that the sender has not told since the last reset. They go when it is complete, but for those of
    clusters that are awaited."""
    _staged: set[str] = field(default_factory=set)
    """While a reset is staged, or one that broke off is in the table: the names that are there because of it."""

    @property
    def is_complete(self) -> bool:
        """There is a table, and no reset of it is staged."""
        return self.synced and not self._is_staged

    def has_room(self, step: Step, most: int) -> bool:
        """Whether the table, and separately an incomplete snapshot, has at most `most` leases after the step."""
        is_staged = step.reset or self._is_staged
        old: Set[str] = self.leases.keys() if step.reset else self._unconfirmed if is_staged else set()
        told, staged = len(self.leases) - len(old), len(self._staged) if is_staged else 0
        if max(told, staged) + len(step.changes) <= most:
            return True
        names = {each.lease.name for each in step.changes if isinstance(each, Upserted)}
        told += sum(name in old or name not in self.leases for name in names)
        staged += sum(name not in self.leases for name in names) if is_staged else 0
        return told <= most and staged <= most

    def withdraw(self) -> frozenset[str]:
        """Takes back what snapshots that were never completed have added; returns their names."""
        gone = frozenset(name for name in self._staged if self.leases.pop(name, None) is not None)
        self._staged.clear()
        self._unconfirmed -= gone
        if gone:
            self.revision += 1
        return gone

    def adopt(self, leases: Mapping[str, Lease]) -> None:
        """Adds what the receiver knew before of clusters that are awaited, as if it had been in this table."""
        for name, lease in leases.items():
            if lease.cluster in self.awaited and name not in self.leases:
                self.leases[name] = lease
                self._unconfirmed.add(name)
                self.revision += 1

    def fold(self, step: Step) -> frozenset[str]:
        """Takes the step; returns the names of the leases that it added, changed or removed."""
        leases, touched = self.leases, set[str]()
        self.lost = step.lost
        if step.reset:
            self._unconfirmed, self._is_staged, self.cursor, self.awaited = set(leases), True, "", frozenset()
        if step.awaited is not None:
            self.awaited = step.awaited
        for change in step.changes:
            if isinstance(change, Upserted):
                lease, name = change.lease, change.lease.name
                known = leases.get(name)
                if known is None or known != lease:
                    leases[name] = lease
                    touched.add(name)
                    if known is None and self._is_staged:
                        self._staged.add(name)
                self._unconfirmed.discard(name)
            elif self._is_staged:
                if change.name in leases:
                    self._unconfirmed.add(change.name)
            elif leases.pop(change.name, None) is not None:
                touched.add(change.name)
                self._unconfirmed.discard(change.name)
        if step.network is not None:
            self.network, self.network_error = step.network, ""
        if step.network_error:
            self.network_error = step.network_error
        if step.store is not None:
            self.store = step.store
        if step.synced:
            gone = {name for name in self._unconfirmed if leases[name].cluster not in self.awaited}
            for name in gone:
                del leases[name]
            touched.update(gone)
            self._unconfirmed -= gone
            self._is_staged, self.synced, self.cursor = False, True, step.cursor or self.cursor
            self._staged.clear()
        overrides = step.overrides.after(self.overrides) if step.overrides is not None else self.overrides
        if touched or step.network is not None or overrides != self.overrides:
            self.revision += 1
        self.overrides = overrides
        return frozenset(touched)


def changes_between(old: Mapping[str, Lease], new: Mapping[str, Lease]) -> tuple[Change, ...]:
    """What turns one table into the other, by value: removals first, so that a subnet can change its name."""
    removed: Iterable[Change] = (Removed(name) for name in old if name not in new)
    upserted: Iterable[Change] = (
        Upserted(lease) for name, lease in new.items() if (known := old.get(name)) is None or known != lease
    )
    return (*removed, *upserted)
