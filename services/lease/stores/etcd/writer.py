"""Looks, decides, writes; and looks again when somebody else was faster."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from services.core.errors import LostRace
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.index import Index
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.listing import read_listing
from services.lease.stores.etcd.records import EtcdLeaseGone, HistoryLost, NothingPutSince, Transaction
from services.lease.stores.etcd.released import note_released

Result = TypeVar("Result")
Decide: TypeAlias = Callable[[], Awaitable[tuple[Transaction, Result]]]

_ATTEMPTS: Final = 40
"""Lost races before giving up; with their pauses some three seconds."""
_LONGEST_PAUSE: Final = 0.1
_NEWS_SECONDS: Final = 0.25
"""So long the watch may take to bring what a write was refused for; then the index is not trusted."""


class Writer:
    """Decisions on the index, one at a time: those of one process would only lose races against each other.

    While the watch keeps the index, a decision costs one transaction. The first refused one waits for the watch; if
    that brings nothing, and whenever there is no watch, everything is listed.
    """

    def __init__(self, client: EtcdClient, keyspace: Keyspace, decoder: Decoder, index: Index) -> None:
        self._client = client
        self._keyspace = keyspace
        self._decoder = decoder
        self._index = index
        self.turn = asyncio.Lock()

    async def write(self, decide: Decide[Result], lost: str) -> Result:
        """`write_in_turn`, when it is our turn."""
        async with self.turn:
            return await self.write_in_turn(decide, lost)

    async def write_in_turn(self, decide: Decide[Result], lost: str) -> Result:
        """What `decide` returns with a transaction, once that has happened. It is called again after a lost race.

        It must make the transaction of the index as it is when it returns. Its guards are checked also when it has
        no writes, so that the answer was true. Raises LostRace(lost), Unavailable, and what `decide` raises.
        """
        is_fresh = self._index.live
        for attempt in range(_ATTEMPTS):
            seen = -1
            with suppress(HistoryLost, EtcdLeaseGone):  # as good as a lost race: look again
                if not is_fresh:
                    await self._list()
                await self._index.prepare()
                transaction, result = await decide()
                seen = self._index.changes
                if await self.try_once(transaction):
                    return result
            is_fresh = self._index.live and await self._hears_more(seen)
            await asyncio.sleep(random.uniform(0, min(0.002 * 2**attempt, _LONGEST_PAUSE)))  # noqa: S311 - jitter
        raise LostRace(lost)

    async def refresh(self) -> None:
        """Sees to it that the index is of now, give or take what is under way. Raises Unavailable."""
        listed = self._index.live
        while not listed:
            with suppress(HistoryLost):
                await self._list()
                listed = True

    async def try_once(self, transaction: Transaction) -> bool:
        """Whether it has happened. Raises EtcdLeaseGone, Unavailable."""
        if not (transaction.guards or transaction.writes):
            return True
        revision = await self._client.transact(note_released(self._keyspace, transaction))
        if revision:
            complete = any(isinstance(guard, NothingPutSince) for guard in transaction.guards)
            self._index.apply(transaction, revision, complete=complete)
        return revision > 0

    async def _list(self) -> None:
        self._index.replace(*await read_listing(self._client, self._keyspace, self._decoder))

    async def _hears_more(self, seen: int) -> bool:
        try:
            async with asyncio.timeout(_NEWS_SECONDS):
                await self._index.changed_since(seen)
        except TimeoutError:
            return False
        return True
