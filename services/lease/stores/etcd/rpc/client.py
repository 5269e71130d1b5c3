"""etcd's calls as we need them, on values of ours.

What every call may raise, and what that means for a write, is in `services.lease.stores.etcd.rpc.cluster`.
"""

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from typing import Any, Final

from services.core.errors import Unavailable
from services.lease.stores.etcd.rpc.cluster import Cluster
from services.lease.stores.etcd.rpc.conversion import (
    batch_of,
    item_of,
    newest_of,
    newest_request,
    page_of,
    range_request,
    read_request,
    txn_request,
    watch_requests,
)
from services.lease.stores.etcd.rpc.members import Timing
from services.lease.stores.etcd.rpc.messages import rpc
from services.lease.stores.etcd.rpc.settings import EtcdSettings
from services.lease.stores.etcd.rpc.values import (
    Batch,
    EtcdLeaseExists,
    EtcdLeaseGone,
    HistoryLost,
    Item,
    Newest,
    NotAllowed,
    Page,
    Position,
    TooLarge,
    Transaction,
)

PAGE: Final = 2_000
"""Keys in a page: some 400 KB."""


class EtcdClient:
    """A cluster, through whichever member answers. Construction opens nothing; close() when done."""

    def __init__(self, settings: EtcdSettings, timing: Timing, agent: str) -> None:
        self._cluster = Cluster(settings, timing, agent)

    async def pages(self, prefix: bytes) -> AsyncGenerator[Page, None]:
        """All keys with the prefix, in order, in pages of one revision, at least one; linearizable.

        A page that would be too large to take is asked for again in smaller ones. Raises HistoryLost when that
        revision is compacted or its cluster replaced meanwhile.
        """
        key, position, limit = prefix, None, PAGE
        while True:
            try:
                response = await self._ask(
                    "range", range_request(key, prefix, limit, position.revision if position else 0)
                )
            except TooLarge as error:
                if limit == 1:
                    raise Unavailable(f"a key of etcd under {prefix!r} is too large to read: {error}") from None
                limit = max(1, limit // 8)
                continue
            page = page_of(response, position)
            if position and page.position != position:
                raise HistoryLost("another cluster answers")
            yield page
            if not response.more:
                return
            key, position = page.items[-1].key + b"\0", page.position

    async def read(self, *keys: bytes) -> tuple[Item | None, ...]:
        """These keys at one revision, None where there is none; linearizable.

        Not in one transaction: an etcd older than 3.5.5 panics when who asks for one that only reads goes away
        meanwhile, so that a broken connection of ours would end it.
        """
        while True:
            revision, items = 0, list[Item | None]()
            with suppress(HistoryLost):  # compacted between two keys
                for key in keys:
                    response = await self._ask("range", read_request(key, revision))
                    revision = revision or response.header.revision
                    items.append(item_of(response))
                return tuple(items)

    async def require_history(self, prefix: bytes, position: Position, newest: Newest) -> None:
        """Raises HistoryLost unless a watch can go on from there, in the history that had this newest key there.

        An etcd that was restored from a backup has the same revisions again, often in the same cluster, and by the
        time we see it perhaps more of them than before, but not with the same keys. Linearizable.
        """
        response = await self._ask("range", newest_request(prefix, position.revision))
        if response.header.cluster_id != position.cluster:
            raise HistoryLost("another cluster answers")
        if not newest.is_in(newest_of(response)):
            raise HistoryLost("etcd was restored from a backup")

    async def transact(self, transaction: Transaction) -> int:
        """The revision at which the guards held and the writes were done; 0: they did not. Raises EtcdLeaseGone."""
        response = await self._ask("txn", txn_request(transaction))
        return int(response.header.revision) if response.succeeded else 0

    async def grant(self, etcd_lease: int, seconds: int) -> int:
        """Makes the etcd lease of this number; returns the seconds it lives. If it exists, it is kept alive."""
        try:
            response = await self._ask("lease_grant", rpc.LeaseGrantRequest(ID=etcd_lease, TTL=seconds))
        except EtcdLeaseExists:
            return await self.keep_alive(etcd_lease)
        return int(response.TTL)

    async def keep_alive(self, etcd_lease: int) -> int:
        """Gives it its full time again; returns the seconds, 0 if there is no such etcd lease."""
        response = await self._ask("lease_keep_alive", rpc.LeaseKeepAliveRequest(ID=etcd_lease))
        return int(response.TTL) if response else 0

    async def revoke(self, etcd_lease: int) -> None:
        """Ends it, and deletes every key that hangs on it. It may be gone already."""
        try:
            await self._ask("lease_revoke", rpc.LeaseRevokeRequest(ID=etcd_lease))
        except EtcdLeaseGone:
            return

    async def keys_on(self, etcd_lease: int) -> tuple[bytes, ...]:
        """The keys that hang on it; none if it is gone."""
        response = await self._ask("lease_time_to_live", rpc.LeaseTimeToLiveRequest(ID=etcd_lease, keys=True))
        return tuple(response.keys)

    async def renewed_ago(self, etcd_lease: int) -> float:
        """Seconds since it was granted or kept alive last; infinite if it is gone."""
        response = await self._ask("lease_time_to_live", rpc.LeaseTimeToLiveRequest(ID=etcd_lease))
        return float(response.grantedTTL - response.TTL) if response.TTL > 0 else math.inf

    async def watch(self, prefix: bytes, position: Position) -> AsyncGenerator[Batch, None]:
        """What happens to keys with the prefix after a position, for ever; first an empty batch: the watch is open.

        Tries each member once until it opens. Raises HistoryLost when there is no going on from there, Unavailable
        when no member opens it, or the one that did fails or freezes.
        """
        for others in reversed(range(len(self._cluster))):
            is_open = False
            try:
                async with aclosing(self._watch(prefix, position)) as batches:
                    async for batch in batches:
                        is_open = True
                        yield batch
            except NotAllowed:
                raise
            except Unavailable:
                if is_open or not others:
                    raise

    async def close(self) -> None:
        """Ends open calls."""
        await self._cluster.close()

    async def _watch(self, prefix: bytes, position: Position) -> AsyncGenerator[Batch, None]:
        """The same on one member."""
        over = asyncio.Event()
        try:
            async with aclosing(self._cluster.messages(watch_requests(prefix, position, over))) as messages:
                async for response in messages:
                    _check_watch(response, position)
                    batch = batch_of(response, position)
                    position = batch.position
                    yield batch
        except TooLarge as error:
            raise HistoryLost(f"too much at once: {error}") from None
        finally:
            over.set()  # grpc does not end the requests of a call that failed

    async def _ask(self, call: str, request: Any) -> Any:
        return await self._cluster.ask(call, request)


def _check_watch(response: Any, position: Position) -> None:
    """Raises HistoryLost if the watch is over before it began, or has another history than the listing."""
    if response.compact_revision:
        raise HistoryLost(f"compacted up to {response.compact_revision}")
    now = Position(response.header.cluster_id, response.header.revision)
    if now.cluster != position.cluster or now.revision < position.revision:
        raise HistoryLost("etcd was replaced or restored from a backup")
