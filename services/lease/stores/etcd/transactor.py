"""The process's copy of the prefix, which the watch keeps, and the actor that carries transactions out."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final, Generic, NamedTuple, TypeAlias, TypeVar

from flannelette.services.core.errors import LostRace, Unavailable
from flannelette.services.lease.progress.connected import ConnectedNodes
from flannelette.services.lease.stores.etcd.keys import Decoded, KeyKind, Keyspace, decode, format_released
from flannelette.services.lease.stores.etcd.prefix import Prefix
from flannelette.services.lease.stores.etcd.rpc.client import EtcdClient
from flannelette.services.lease.stores.etcd.rpc.values import (
    Delete,
    EtcdLeaseGone,
    HistoryLost,
    Page,
    Put,
    Transaction,
    WatchBatch,
)
from flannelette.services.lease.stores.store import Changed
from flannelette.services.runtime.backoff import Backoff

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
        """As the watch has told it so far."""
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
    """At which it happened."""

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
