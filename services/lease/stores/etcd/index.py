"""What etcd holds, ready for a decision: the watch keeps it, so that an acquisition costs no listing. No IO."""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, TypeVar

from services.core.errors import NotYet
from services.core.family import Family
from services.core.lease import Lease
from services.core.network import NetworkConfig
from services.core.occupancy import Occupancy, Usage
from services.lease.claims import Claims
from services.lease.stores.etcd.configuration import read_configuration
from services.lease.stores.etcd.decoder import Decoder, Known
from services.lease.stores.etcd.entry import Entry, as_held, is_subnet, read_entry
from services.lease.stores.etcd.keyspace import Keyspace, Kind
from services.lease.stores.etcd.records import Delete, Event, Gone, Item, Position, Transaction

Value = TypeVar("Value")

_AT_ONCE: Final = 200
"""Leases put together before somebody else may have the loop: a few milliseconds."""


class Index:
    """Entries, claims, orphans and sessions, at `revision`.

    It may be behind etcd. What is decided on it is written under guards on what was looked at, so that it happens on
    the truth or not at all; deletions it has not heard of only make it more careful. Level-triggered:
    `changed_since` says when to look again.
    """

    def __init__(self, keyspace: Keyspace, decoder: Decoder, clock: Callable[[], float] = time.monotonic) -> None:
        self.live = False
        """The watch keeps it up to date. If not, list before deciding."""
        self.revision = 0
        """Every put of a subnet key up to here is in."""
        self.changes = 0
        """How often anything has changed."""
        self.config: Item | None = None
        self.sessions: dict[str, Item] = {}
        """By node: those whose dataplane is connected to some lease service."""
        self.session_ended: dict[str, float] = {}
        """By node that holds a lease: since when it has no session any more, as far as was seen; on the clock."""
        self._entries: dict[str, Entry] = {}
        self._orphans: dict[str, Item] = {}
        self._claims = Claims()
        self._unsettled: dict[str, None] = {}
        """Names of leases of which a key has changed since anybody looked."""
        self._leaving: set[str] = set()
        """Nodes that may hold nothing any more, to be looked at when all is settled."""
        self._keyspace = keyspace
        self._decoder = decoder
        self._clock = clock
        self._network: NetworkConfig | None = None
        self._network_error = read_configuration(keyspace.config, None)[1]
        self._items: dict[bytes, Item] = {}
        self._listed = 0
        self._changed = asyncio.Event()

    @property
    def entries(self) -> Mapping[str, Entry]:
        """By name. Keys that are no subnets are left out."""
        self._settle(len(self._unsettled))
        return self._entries

    @property
    def orphans(self) -> Mapping[str, Item]:
        """Holders without a lease, by name."""
        self._settle(len(self._unsettled))
        return self._orphans

    @property
    def claims(self) -> Claims:
        """The entries, for a decision."""
        self._settle(len(self._unsettled))
        return self._claims

    @property
    def occupancy(self) -> Occupancy:
        """What is taken of the network. Raises NotYet where there is none, or none that can be read."""
        self.claims.lease_from(self._network)
        if self.claims.occupancy is None:
            raise NotYet(self._network_error)
        return self.claims.occupancy

    def usage(self, family: Family) -> Usage:
        """How full the network is in one family."""
        self.claims.lease_from(self._network)
        return self.claims.usage(family)

    def dated(self, lease: Lease) -> Lease:
        """The same lease with the age of its claim, if it is here."""
        entry = self.entries.get(lease.name)
        return replace(lease, claim_order=entry.claim_order) if entry else lease

    def etcd_lease_of(self, node: str) -> int:
        """What the holder keys of the node hang on; 0: not known."""
        items = (self.entries[claim.name].holder_item for claim in self.claims.of_node(node))
        return next((item.etcd_lease for item in items if item and item.etcd_lease), 0)

    def replace(self, listed: Collection[Known], position: Position) -> None:
        """Takes a complete listing."""
        before, self._items = self._items, {known.item.key: known.item for known in listed}
        self._listed = self.revision = position.revision
        for key in before.keys() - self._items.keys():
            self._look(*self._keyspace.classify(key))
        for item, kind, name, _, _ in listed:
            if before.get(item.key) != item:
                self._look(kind, name)
        self._note()

    def fold(self, events: Iterable[Event], revision: int) -> None:
        """Takes what the watch tells, up to a revision. What is older than what is known already changes nothing."""
        for event in events:
            known = self._items.get(event.key)
            if event.revision > self._listed and (known is None or event.revision >= known.revision):
                self._take(event.key, None if isinstance(event, Gone) else event)
        self.revision = max(self.revision, revision)
        self._note()

    def apply(self, transaction: Transaction, revision: int, *, complete: bool) -> None:
        """Takes our own writes before the watch tells them. `complete`: no subnet key of others was put meanwhile."""
        for write in transaction.writes:
            known = self._items.get(write.key)
            if known is not None and known.revision >= revision:
                continue
            if isinstance(write, Delete):
                self._take(write.key, None)
            else:
                created = known.created if known else revision
                self._take(write.key, Item(write.key, write.value, revision, write.etcd_lease, created))
        if complete:
            self.revision = max(self.revision, revision)
        self._note()

    async def prepare(self) -> None:
        """Puts together what has come, so that a decision need not; ten thousand leases do not hold up the loop."""
        while self._unsettled:
            self._settle(_AT_ONCE)
            await asyncio.sleep(0)

    async def changed_since(self, changes: int) -> None:
        """Returns as soon as `changes` is another than this."""
        while self.changes == changes:
            await self._changed.wait()

    def _take(self, key: bytes, item: Item | None) -> None:
        if item is None:
            self._items.pop(key, None)
        else:
            self._items[key] = item
        self._look(*self._keyspace.classify(key))

    def _look(self, kind: Kind, name: str) -> None:
        """Brings what is known in line with the keys."""
        match kind:
            case Kind.SUBNET | Kind.HOLDER:
                self._unsettled[name] = None
            case Kind.CONFIG:
                self.config = self._items.get(self._keyspace.config)
                self._network, self._network_error = read_configuration(self._keyspace.config, self.config)
            case Kind.SESSION:
                session = self._items.get(self._keyspace.session(name))
                if session is None and name in self.sessions:
                    self.session_ended[name] = self._clock()
                    self._leaving.add(name)
                    self._unsettled |= dict.fromkeys(claim.name for claim in self._claims.of_node(name))
                _set(self.sessions, name, session)

    def _settle(self, most: int) -> None:
        for name in list(islice(self._unsettled, most)):
            self._put_together(name)
            del self._unsettled[name]
        while self._leaving and not self._unsettled:
            node = self._leaving.pop()
            if not self._claims.of_node(node):
                self.session_ended.pop(node, None)

    def _put_together(self, name: str) -> None:
        item = self._items.get(self._keyspace.subnet(name))
        holder_item = self._items.get(self._keyspace.holder(name))
        entry = read_entry(self._decoder, name, item, holder_item) if item else None
        if entry is not None and (known := self._entries.get(name)) and known.node in self.sessions:
            entry = as_held(entry, known)
        _set(self._entries, name, entry)
        _set(self._orphans, name, holder_item if item is None and is_subnet(name) else None)
        before = self._claims.get(name)
        if before is not None and before.node and (entry is None or entry.node != before.node):
            self._leaving.add(before.node)
        if entry is not None:
            self._claims.put(entry.claim)
        else:
            self._claims.drop(name)

    def _note(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()


def _set(table: dict[str, Value], name: str, value: Value | None) -> None:
    if value is None:
        table.pop(name, None)
    else:
        table[name] = value
