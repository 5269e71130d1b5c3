"""The prefix as the watch has seen it so far, and what each message of the watch means. No IO."""

from collections.abc import Collection, Mapping
from itertools import groupby
from types import MappingProxyType
from typing import Final, TypeVar

from services.core.lease import Lease
from services.core.table import Change, Removed, Upserted
from services.lease.store import Changed, Snapshot
from services.lease.stores.etcd.configuration import read_configuration
from services.lease.stores.etcd.decoder import Decoder, Known
from services.lease.stores.etcd.holders import Holder, is_foreign, is_overwritten
from services.lease.stores.etcd.keyspace import Keyspace, Kind
from services.lease.stores.etcd.records import Batch, Event, Gone, Item, Newest, Position
from services.lease.stores.etcd.released import read_released

Value = TypeVar("Value")

_OVERWRITTEN: Final = (
    "the value of {name} says {names}, where node {node}, which holds it, has {theirs}: another program has "
    "overwritten it, and the node puts it right once it is connected"
)
_FOREIGN: Final = "flannel watches everything that starts with {subnets}, and this is no lease: delete it"


class Mirror:
    """Follows leases, holders and configuration.

    * What does not parse is refused and changes nothing: a lease whose value is overwritten by a bad one stays as
      it was, also through a new listing, until its key is gone or good again. So does one whose value another
      program has overwritten with that of somebody else (see is_overwritten): what it says reaches nobody.
    * A lease and its holder that are written in one revision are one change.
    * A lease whose last deletion was on purpose (`released`) is told as such; a listing says nothing of that.
    """

    def __init__(self, keyspace: Keyspace, decoder: Decoder) -> None:
        self.position: Position | None = None
        """Everything up to here is in; None: nothing was listed yet."""
        self._keyspace = keyspace
        self._decoder = decoder
        self._items: dict[bytes, Item] = {}
        self._leases: dict[str, Known] = {}
        """The version of each subnet key that is in force: the last one that parses."""
        self._holders: dict[str, Known] = {}
        """Likewise of each holder key."""
        self._table: dict[str, Lease] = {}
        self._refused: dict[str, str] = {}
        self._told_again: set[str] = set()
        """Keys that were refused and written anew with the batch that is taken now, to be refused again."""
        self._overwritten: dict[str, Known] = {}
        """By name: what a key holds that is refused because another program has written it."""
        self._replaced: dict[str, Known] = {}
        """What the keys held that are taken now."""
        self._noted: frozenset[str] = frozenset()
        """Leases that the revision which is taken now removed on purpose."""
        self._network, self._network_error = read_configuration(keyspace.config, None)

    def replace(self, listed: Collection[Known], position: Position) -> Snapshot:
        """Takes a complete listing."""
        old_leases, old_holders = self._leases, self._holders
        self._overwritten, self._replaced = {}, {}
        self._items = {known.item.key: known.item for known in listed}
        self._leases = {known.name: known for known in listed if isinstance(known.value, Lease)}
        self._holders = {known.name: known for known in listed if isinstance(known.value, Holder)}
        self._refused = {}
        self._network, self._network_error = read_configuration(self._keyspace.config, None)
        for known in listed:
            if known.value is None:
                if known.kind is Kind.SUBNET and known.name in old_leases:
                    self._leases[known.name] = old_leases[known.name]
                elif known.kind is Kind.HOLDER and known.name in old_holders:
                    self._holders[known.name] = old_holders[known.name]
                self._keep(known)
        for name in [name for name in self._holders if self._is_contradicted(name)]:
            self._refuse_overwritten(name, old_leases.get(name))
        self._table = {name: self._held(name, known) for name, known in self._leases.items()}
        self.position = position
        return self.snapshot()

    def fold(self, batch: Batch) -> Changed | None:
        """Takes what happened; None: nothing that anybody has to know."""
        network, network_error, refused = self._network, self._network_error, dict(self._refused)
        changes: list[Change] = []
        released: set[str] = set()
        self._told_again = set()
        for _, events in groupby(batch.events, key=lambda event: event.revision):
            self._noted = frozenset()
            touched = {name: None for event in events if (name := self._take(event))}
            changes += [change for name in touched if (change := self._settle(name))]
            released = {name for name in released if name not in touched}
            released |= {name for name in self._noted if name in touched and name not in self._leases}
        self.position = batch.position
        event = Changed(
            tuple(changes),
            self._network if self._network != network else None,
            self._network_error if self._network_error != network_error else "",
            {k: reason for k, reason in self._refused.items() if refused.get(k) != reason or k in self._told_again},
            frozenset(refused.keys() - self._refused.keys()),
            frozenset(released),
        )
        return event if event != Changed() else None

    def snapshot(self) -> Snapshot:
        """Everything as it is now."""
        return Snapshot(_copy(self._table), self._network, self._network_error, _copy(self._refused))

    @property
    def newest(self) -> Newest:
        """What etcd must have had at the position, if its history is the one that we have followed."""
        revision = max((item.revision for item in self._items.values()), default=0)
        return Newest(len(self._items), frozenset(i for i in self._items.values() if i.revision == revision))

    def _take(self, event: Event) -> str:
        """Takes one key; returns the name of the lease that it may concern."""
        if isinstance(event, Gone):
            self._decoder.forget(event.key)
            return self._drop(event.key)
        return self._keep(self._decoder.read(self._keyspace, event))

    def _keep(self, known: Known) -> str:
        item, kind, name, value, error = known
        before = self._items.get(item.key)
        self._items[item.key] = item
        if kind is Kind.SUBNET or kind is Kind.HOLDER:
            if error or self._refused:
                self._refuse(name if kind is Kind.SUBNET else f"holders/{name}", error, is_new=item != before)
            if kind is Kind.SUBNET:
                self._overwritten.pop(name, None)
            if isinstance(value, Lease):
                if name in self._leases:
                    self._replaced[name] = self._leases[name]
                self._leases[name] = known
            elif value is not None:
                self._holders[name] = known
            return name
        if kind is Kind.CONFIG:
            self._network, self._network_error = read_configuration(item.key, item)
        elif kind is Kind.RELEASED:
            self._noted = read_released(item.value)
        elif kind is Kind.FOREIGN:
            self._refused[name] = _FOREIGN.format(subnets=self._keyspace.subnets[:-1].decode())
        return ""

    def _refuse(self, key: str, reason: str, *, is_new: bool) -> None:
        """For this reason; empty: it is refused no longer. `is_new`: it was written, be it for the same reason."""
        if reason:
            self._refused[key] = reason
            if is_new:
                self._told_again.add(key)
        else:
            self._refused.pop(key, None)

    def _drop(self, key: bytes) -> str:
        kind, name = self._keyspace.classify(key)
        self._items.pop(key, None)
        match kind:
            case Kind.SUBNET:
                self._leases.pop(name, None)
                self._overwritten.pop(name, None)
                self._refused.pop(name, None)
                return name
            case Kind.HOLDER:
                self._holders.pop(name, None)
                self._refused.pop(f"holders/{name}", None)
                return name
            case Kind.CONFIG:
                self._network, self._network_error = read_configuration(key, None)
            case Kind.FOREIGN:
                self._refused.pop(name, None)
        return ""

    def _settle(self, name: str) -> Change | None:
        """Brings the table's lease into line with what is known of it; None: it was."""
        kept = self._replaced.pop(name, None)
        if (overwritten := self._overwritten.pop(name, None)) is not None:
            kept, self._leases[name] = self._leases.get(name), overwritten
            self._refused.pop(name, None)
        if self._is_contradicted(name):
            self._refuse_overwritten(name, kept)
        known = self._leases.get(name)
        if known is None:
            return Removed(name) if self._table.pop(name, None) else None
        held = self._held(name, known)
        if self._table.get(name) == held:
            return None
        self._table[name] = held
        return Upserted(held)

    def _held(self, name: str, known: Known) -> Lease:
        lease, beside = _lease(known), self._holders.get(name)
        if beside is None or not (holder := _holder(beside)).holds(lease) or is_foreign(known.item, beside.item):
            return lease
        return lease.held_by(holder.node, known.item.revision)

    def _is_contradicted(self, name: str) -> bool:
        """Whether the value is another program's, by what the holder says; what is no lease is refused anyhow."""
        known, beside = self._leases.get(name), self._holders.get(name)
        if known is None or beside is None or name in self._refused or is_foreign(known.item, beside.item):
            return False
        return is_overwritten(known.item, beside.item, _holder(beside), _lease(known))

    def _refuse_overwritten(self, name: str, kept: Known | None) -> None:
        """What the key held before stays in force, if that is known."""
        said, holder = self._leases.pop(name), _holder(self._holders[name])
        self._overwritten[name] = said
        if kept is not None:
            self._leases[name] = kept
        names = " and ".join(map(str, _lease(said).addresses)) or "no public address"
        theirs = " and ".join(map(str, holder.addresses))
        reason = _OVERWRITTEN.format(name=name, names=names, node=holder.node, theirs=theirs)
        self._refuse(name, reason, is_new=True)


def _lease(known: Known) -> Lease:
    assert isinstance(known.value, Lease)  # noqa: S101 - nothing else is kept in force
    return known.value


def _holder(known: Known) -> Holder:
    assert isinstance(known.value, Holder)  # noqa: S101 - nothing else is kept in force
    return known.value


def _copy(mapping: Mapping[str, Value]) -> Mapping[str, Value]:
    return MappingProxyType(dict(mapping))
