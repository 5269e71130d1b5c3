"""The process's copy of the prefix, which the watch keeps; transactions, and the actor that carries them out.

Every write is guarded by the revisions of the keys that it replaces, so that it happens on what was looked at or
not at all; repeating one that had happened (its answer was lost) changes nothing.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from flannelette.services.core.errors import LostRace, Unavailable
from flannelette.services.core.ipam import Allocation, set_aside
from flannelette.services.core.leases.conflicts import identities_of
from flannelette.services.core.leases.flannel_json import format_value
from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.stores.etcd.client import EtcdClient
from flannelette.services.lease.stores.etcd.prefix import (
    Decoded,
    Entry,
    Holder,
    KeyKind,
    Keyspace,
    Prefix,
    decode,
    format_holder,
    format_released,
    holder_of,
    orphans_of,
)
from flannelette.services.lease.stores.etcd.values import (
    Delete,
    EtcdLeaseGone,
    Guard,
    HistoryLost,
    Item,
    NothingPutSince,
    Page,
    Put,
    Transaction,
    Unchanged,
    WatchBatch,
    Write,
)
from flannelette.services.lease.stores.store import Changed
from flannelette.services.runtime.backoff import Backoff


def taking(prefix: Prefix, allocation: Allocation, etcd_lease: int, machine: str = "") -> Transaction:
    """Makes a decision true, for this machine of the node; without writes if it is.

    No two leases made like this overlap, or share an address, a MAC or a key: what adds a subnet or changes one of
    these is guarded by "no subnet key was put since", so it was decided on all that is there. (A guard on the new key
    alone, as flanneld's, lets 10.5.52.0-24 pass beside 10.5.52.0-24&fd00::-64 or 10.5.52.0-25, and one address beside
    itself.)
    It is guarded by the configuration that was decided on, too, and by the absence of the sessions of nodes that
    lose something because they are not alive; where another machine of the node loses it, the node's session is as
    it was.
    """
    keyspace, lease = prefix.keyspace, allocation.lease
    current = prefix.entries[lease.name] if allocation.current else None
    values = (format_value(lease).encode(), format_holder(holder_of(lease, machine)))
    if current is not None:
        # Of an overwritten lease the holder key is put in any case: it may say what it should, on another etcd lease.
        writes = _replacing(keyspace, current, values, etcd_lease, is_holder_wrong=current.lease is None)
        guards = list(_as_seen(keyspace, current))
    else:
        keys = (keyspace.subnet(lease.name), keyspace.holder(lease.name))
        writes = [Put(key, value, etcd_lease) for key, value in zip(keys, values, strict=True)]
        guards = list(_as_absent(prefix, lease.name))
    guards.append(Unchanged(keyspace.config, _revision(prefix.config)))
    for claim in allocation.given_up:
        surrender = giving_back(keyspace, prefix.entries[claim.name])
        guards += surrender.guards
        writes += surrender.writes
    guards += [Unchanged(keyspace.session(node), 0) for node in sorted(allocation.rivals)]
    if prefix.held_by_others(lease.node, machine):
        guards.append(Unchanged(keyspace.session(lease.node), _revision(prefix.sessions.get(lease.node))))
    if allocation.current is None or allocation.current.identities != identities_of(lease):
        guards.append(NothingPutSince(keyspace.subnets, prefix.revision))
    return Transaction(tuple(guards), tuple(writes))


def extending(keyspace: Keyspace, entry: Entry, etcd_lease: int) -> Transaction:
    """Attaches a lease and its holder to this etcd lease; without writes if they are."""
    values = (entry.subnet.item.value, entry.beside.item.value if entry.beside else b"")
    return Transaction(_as_seen(keyspace, entry), tuple(_replacing(keyspace, entry, values, etcd_lease)))


def leaving(prefix: Prefix, name: str) -> Transaction:
    """Leaves a lease as it is, if it is as it was seen."""
    entry = prefix.entries.get(name)
    return Transaction(_as_seen(prefix.keyspace, entry) if entry else _as_absent(prefix, name), ())


def giving_back(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Deletes a lease and its holder. Of a reservation only the holder; one that is bound to its node keeps it."""
    guards = _as_seen(keyspace, entry)
    if entry.bound and (claim := entry.claim):
        return Transaction(guards, _putting(keyspace, set_aside(claim.cidrs, entry.node)))
    writes: list[Write] = [] if entry.reserved else [Delete(keyspace.subnet(entry.name))]
    if entry.beside:
        writes.append(Delete(keyspace.holder(entry.name)))
    return Transaction(guards, tuple(writes))


def reserving(prefix: Prefix, unused: Lease) -> Transaction:
    """Sets new subnets aside; guarded as a new lease is."""
    guards = (
        *_as_absent(prefix, unused.name),
        Unchanged(prefix.keyspace.config, _revision(prefix.config)),
        NothingPutSince(prefix.keyspace.subnets, prefix.revision),
    )
    return Transaction(guards, _putting(prefix.keyspace, unused))


def keeping(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Makes a node's lease its reservation, in use: neither key runs out any more; without writes if it is one."""
    is_done = (entry.reserved, entry.bound)
    writes = (Put(item.key, item.value) for item, done in zip(entry.items, is_done, strict=True) if item and not done)
    return Transaction(_as_seen(keyspace, entry), tuple(writes))


def unreserving(keyspace: Keyspace, entry: Entry, etcd_lease: int) -> Transaction:
    """Makes a reservation that is in use an ordinary lease of its node."""
    writes = (Put(item.key, item.value, etcd_lease) for item in entry.items if item)
    return Transaction(_as_seen(keyspace, entry), tuple(writes))


def freeing(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Deletes a lease or reservation, whatever it is."""
    return Transaction(_as_seen(keyspace, entry), tuple(Delete(item.key) for item in entry.items if item))


def reclaiming(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Deletes a lease, unless its node comes back meanwhile."""
    freed = freeing(keyspace, entry)
    absent = (Unchanged(keyspace.session(entry.node), 0),) if entry.node else ()
    return Transaction((*freed.guards, *absent), freed.writes)


def clearing(prefix: Prefix) -> tuple[Transaction, ...]:
    """Deletes holders that have no lease, one by one."""
    return tuple(
        Transaction(_as_absent(prefix, name), (Delete(item.key),)) for name, item in orphans_of(prefix).items()
    )


def deleting(prefix: Prefix, key: Decoded) -> Transaction:
    """Deletes one key, whatever it is; the holder beside a lease goes with it."""
    keys = (key.item.key, prefix.keyspace.holder(key.name)) if key.kind is KeyKind.SUBNET else (key.item.key,)
    found = [(each, prefix.key(each)) for each in keys]
    guards = (Unchanged(each, decoded.item.revision if decoded else 0) for each, decoded in found)
    return Transaction(tuple(guards), tuple(Delete(each) for each, decoded in found if decoded))


def _replacing(
    keyspace: Keyspace, entry: Entry, values: tuple[bytes, bytes], etcd_lease: int, *, is_holder_wrong: bool = False
) -> list[Write]:
    """Puts the lease key and the holder key where value or etcd lease differ; a reservation gets no etcd lease."""
    subnet, beside = entry.items
    wanted = (
        Put(keyspace.subnet(entry.name), values[0], 0 if entry.reserved else etcd_lease),
        Put(keyspace.holder(entry.name), values[1], 0 if entry.bound else etcd_lease),
    )
    return [
        put
        for put, item in zip(wanted, (subnet, None if is_holder_wrong else beside), strict=True)
        if item is None or (item.value, item.etcd_lease) != (put.value, put.etcd_lease)
    ]


def _putting(keyspace: Keyspace, unused: Lease) -> tuple[Write, ...]:
    """A reservation that nobody uses: its value has no address."""
    subnet = Put(keyspace.subnet(unused.name), format_value(unused).encode())
    holder = Put(keyspace.holder(unused.name), format_holder(Holder(unused.node, "", "")))
    return (subnet, holder) if unused.node else (subnet,)


def _as_seen(keyspace: Keyspace, entry: Entry) -> tuple[Guard, ...]:
    return _unchanged(keyspace, entry.name, entry.subnet, entry.beside)


def _as_absent(prefix: Prefix, name: str) -> tuple[Guard, ...]:
    return _unchanged(prefix.keyspace, name, None, prefix.orphans.get(name))


def _unchanged(keyspace: Keyspace, name: str, subnet: Decoded | None, beside: Decoded | None) -> tuple[Guard, ...]:
    return (
        Unchanged(keyspace.subnet(name), _revision(subnet.item if subnet else None)),
        Unchanged(keyspace.holder(name), _revision(beside.item if beside else None)),
    )


def _revision(item: Item | None) -> int:
    return item.revision if item else 0


_AT_ONCE: Final = 200
"""So many keys are parsed, or leases settled, a millisecond or two, before others have their turn."""
_WATCH_SECONDS: Final = 0.25
"""So long the watch may take to tell what has happened; then it is not trusted, and everything is listed."""
_LISTINGS: Final = 3
Result = TypeVar("Result")
Decide: TypeAlias = Callable[[Prefix], Awaitable[tuple[Transaction, Result]]]
"""Makes a transaction of the model as it is when this returns."""

_ATTEMPTS: Final = 40
"""Lost races before giving up; with their pauses some three seconds."""
_FIRST_PAUSE: Final = 0.002
_LONGEST_PAUSE: Final = 0.1


class Replica:
    """The model that the watch keeps up to date while `is_live`; one for the process."""

    def __init__(self, client: EtcdClient, keyspace: Keyspace, connected_nodes: ConnectedNodes) -> None:
        self.prefix = Prefix(keyspace)
        """The keys as the watch has told them so far."""
        self.is_live = False
        """The watch is open."""
        self.changes = 0
        """How often anything has changed."""
        self._client = client
        self._connected_nodes = connected_nodes
        self._changed = asyncio.Event()
        self.replace(self.prefix)

    async def listing(self, memory: Prefix | None = None) -> Prefix:
        """What etcd holds now, linearizable, at one revision. Raises HistoryLost, Unavailable.

        `memory` is what was known before, if that counts; see Prefix.relisted. The keys are parsed in small parts
        while etcd looks for more: neither etcd nor the event loop waits until ten thousand leases are read.
        """
        known, listed = self.prefix.keys(), list[Decoded]()
        keyspace = self.prefix.keyspace
        async with aclosing(self._client.pages(keyspace.root)) as pages:
            page: Page | None = await anext(pages)
            while page is not None:
                position = page.position
                following = asyncio.ensure_future(anext(pages, None))
                try:
                    for start in range(0, len(page.items), _AT_ONCE):
                        await asyncio.sleep(0)
                        part = page.items[start : start + _AT_ONCE]
                        listed += [decode(keyspace, item, known.get(item.key)) for item in part]
                    page = await following
                finally:
                    following.cancel()
                    await asyncio.wait([following])  # the generator cannot be closed while it runs
        return (memory or Prefix(keyspace)).relisted(listed, position, time.monotonic())

    async def fresh_listing(self) -> Prefix:
        """What etcd holds now, by nobody's memory. Raises Unavailable."""
        for _ in range(_LISTINGS):
            with suppress(HistoryLost):  # compacted between two pages
                return await self.listing()
        raise Unavailable("etcd is compacted faster than it can be listed: compact it less often")

    async def current(self, revision: int, *, is_trusted: bool = True) -> Prefix:
        """A model to decide on, which has everything up to a revision: the live one, or that of a listing.

        `is_trusted`: the live one may do. Raises HistoryLost, Unavailable.
        """
        prefix = self.prefix if is_trusted and await self.has(revision) else await self.listing(self.prefix)
        await _settle(prefix)
        return prefix

    async def has(self, revision: int) -> bool:
        """Waits a moment until the watch has told everything up to a revision; says whether it has."""
        while self.is_live and self.prefix.revision < revision:
            if not await self.tells_more(self.changes):
                return False
        return self.is_live

    async def settle(self) -> None:
        """Prepares the live model for a decision."""
        await _settle(self.prefix)

    async def tells_more(self, changes: int) -> bool:
        """Waits a moment until `changes` is another than this; says whether it is."""
        try:
            async with asyncio.timeout(_WATCH_SECONDS):
                while self.changes == changes:
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def replace(self, prefix: Prefix) -> None:
        """Replaces the model; its sessions are those of other lease services."""
        self.prefix = prefix
        self._connected_nodes.elsewhere = prefix.sessions.keys()
        self._note()

    def fold(self, batch: WatchBatch) -> Changed | None:
        """Takes a message of the watch; returns what it means to watchers."""
        self.is_live = True
        changed = self.prefix.fold(batch, time.monotonic())
        self._note()
        return changed

    def _note(self) -> None:
        self.changes += 1
        self._changed.set()
        self._changed = asyncio.Event()


class Written(NamedTuple, Generic[Result]):
    """A decision that was carried out."""

    result: Result
    """What `decide` returned with the transaction."""
    transaction: Transaction
    revision: int
    """Revision at which it happened."""

    def puts(self, key: bytes) -> bool:
        """Whether it has put a key."""
        return any(isinstance(write, Put) and write.key == key for write in self.transaction.writes)


class Transactor:
    """Carries out decisions of one process.

    While the watch keeps the model, a decision costs one transaction. It is taken when the watch has told all that
    this process has written. After the first refused one the watch is waited for; if that brings nothing, and
    whenever there is no watch, everything is listed.
    """

    def __init__(self, client: EtcdClient, keyspace: Keyspace, replica: Replica) -> None:
        self._lock = asyncio.Lock()
        self._client = client
        self._keyspace = keyspace
        self._replica = replica
        self._written = 0
        """The revision of the last write."""

    async def write(self, decide: Decide[Result], lost: str) -> Written[Result]:
        """Carries out what `decide` returns, which is asked again after a lost race.

        The guards of a transaction without writes are checked too, so that the answer was true. Raises
        LostRace(lost), Unavailable, and what `decide` raises.
        """
        is_trusted, pauses = True, Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, share=1.0)
        for _ in range(_ATTEMPTS):
            seen = -1
            with suppress(HistoryLost, EtcdLeaseGone):  # as good as a lost race: look again
                prefix = await self._replica.current(self._written, is_trusted=is_trusted)
                transaction, result = await decide(prefix)
                seen = self._replica.changes
                if revision := await self.commit(transaction):
                    return Written(result, transaction, revision)
            is_trusted = self._replica.is_live and await self._replica.tells_more(seen)
            await asyncio.sleep(pauses.next())
        raise LostRace(lost)

    async def write_in_turn(self, decide: Decide[Result], lost: str) -> Written[Result]:
        """`write` for a decision that claims something new: of one process, these would only lose races."""
        async with self._lock:
            return await self.write(decide, lost)

    async def current(self) -> Prefix:
        """The model of now, give or take what is under way. Raises Unavailable."""
        while True:
            with suppress(HistoryLost):
                return await self._replica.current(self._written)

    async def caught_up(self) -> None:
        """Waits a moment until the watch has told what this process has written."""
        await self._replica.has(self._written)

    async def commit(self, transaction: Transaction) -> int:
        """The revision at which it happened; 0: a guard did not hold. Raises EtcdLeaseGone, Unavailable."""
        transaction = with_released(self._keyspace, transaction)
        revision = await self._client.transact(transaction)
        if transaction.writes:
            self._written = max(self._written, revision)
        return revision


async def _settle(prefix: Prefix) -> None:
    """Ten thousand leases do not hold up the event loop."""
    while prefix.settle(_AT_ONCE):  # noqa: ASYNC110 - work of this loop, not something to wait for
        await asyncio.sleep(0)


def with_released(keyspace: Keyspace, transaction: Transaction) -> Transaction:
    """The transaction, which says of the leases that it deletes that this is on purpose (ADR 17)."""
    deleted = (keyspace.classify(write.key) for write in transaction.writes if isinstance(write, Delete))
    names = [name for kind, name in deleted if kind is KeyKind.SUBNET]
    if not names:
        return transaction
    return replace(transaction, writes=(*transaction.writes, Put(keyspace.released, format_released(names))))
