"""etcd's calls as we need them, on values of ours.

What every call may raise, and what that means for a write, is in services/lease/stores/etcd/rpc/cluster.py.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.lease.stores.etcd.rpc.cluster import Cluster
from flannelette.services.lease.stores.etcd.rpc.members import Timing
from flannelette.services.lease.stores.etcd.rpc.messages import rpc
from flannelette.services.lease.stores.etcd.rpc.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.rpc.values import (
    DeletedKey,
    EtcdLeaseExists,
    EtcdLeaseGone,
    Event,
    Guard,
    HistoryLost,
    Item,
    Newest,
    NotAllowed,
    Page,
    Position,
    Put,
    TooLarge,
    Transaction,
    Unchanged,
    Untrue,
    WatchBatch,
    Write,
    end_of,
)

PAGE: Final = 2_000
"""Keys in a page: some 400 KB."""
_MOST_KEYS: Final = 1_000_000
"""Largest number of keys in a listing: more than a network has subnets."""
_PUT: Final = 0
"""mvccpb.Event.PUT"""


class EtcdClient:
    """A cluster, through whichever member answers. Construction opens nothing; close() when done."""

    def __init__(self, settings: EtcdSettings, timing: Timing, agent: str) -> None:
        self._cluster = Cluster(settings, timing, agent)
        self._ask = self._cluster.ask
        self.check_members, self.findings = self._cluster.check_members, self._cluster.health.findings

    async def pages(self, prefix: bytes) -> AsyncGenerator[Page, None]:
        """All keys with the prefix, in order, in pages of one revision, at least one; linearizable.

        A page that would be too large to take is asked for again in smaller ones. Raises HistoryLost when that
        revision is compacted or its cluster replaced meanwhile.
        """
        key, limit, keys = prefix, PAGE, 0
        position: Position | None = None
        while True:
            try:
                revision = position.revision if position else 0
                request = rpc.RangeRequest(key=key, range_end=end_of(prefix), limit=limit, revision=revision)
                response = await self._ask("range", request)
            except TooLarge as error:
                if limit == 1:
                    raise Unavailable(f"a key of etcd under {prefix!r} is too large to read: {error}") from None
                limit = max(1, limit // 8)
                continue
            header, items = response.header, tuple(map(_item, response.kvs))
            position = position or Position(header.cluster_id, header.revision)
            if header.cluster_id != position.cluster:
                raise HistoryLost("another cluster answers", is_replaced=True)
            yield Page(items, position)
            if not response.more:
                return
            key, keys = items[-1].key + b"\0", keys + len(items)
            if keys > _MOST_KEYS:
                raise Untrue(f"etcd has more than {_MOST_KEYS} keys under {prefix!r}: check --etcd-prefix")

    async def require_history(self, prefix: bytes, position: Position, newest: Newest) -> None:
        """Raises HistoryLost unless a watch can go on from there, in the history that had this newest key there.

        An etcd that was restored from a backup has the same revisions again, often in the same cluster, and by the
        time we see it perhaps more of them than before, but not with the same keys. Linearizable.
        """
        request = rpc.RangeRequest(
            key=prefix,
            range_end=end_of(prefix),
            revision=position.revision,
            limit=1,
            sort_order=rpc.RangeRequest.DESCEND,
            sort_target=rpc.RangeRequest.MOD,
        )
        response = await self._ask("range", request)
        if response.header.cluster_id != position.cluster:
            raise HistoryLost("another cluster answers", is_replaced=True)
        if not newest.is_in(Newest(response.count, frozenset(map(_item, response.kvs)))):
            raise HistoryLost("etcd was restored from a backup", is_replaced=True)

    async def transact(self, transaction: Transaction) -> int:
        """The revision at which the guards held and the writes were done; 0: they did not. Raises EtcdLeaseGone."""
        compare, success = map(_compare, transaction.guards), map(_operation, transaction.writes)
        response = await self._ask("txn", rpc.TxnRequest(compare=compare, success=success))
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

    async def expires_in(self, etcd_lease: int) -> float:
        """Seconds until it expires; 0 if it is gone."""
        response = await self._ask("lease_time_to_live", rpc.LeaseTimeToLiveRequest(ID=etcd_lease))
        return float(max(response.TTL, 0))

    async def watch(self, prefix: bytes, position: Position) -> AsyncGenerator[WatchBatch, None]:
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
        """Closes the connections, which ends open calls."""
        await self._cluster.close()

    async def _watch(self, prefix: bytes, position: Position) -> AsyncGenerator[WatchBatch, None]:
        """The same on one member."""
        over = asyncio.Event()
        try:
            async with aclosing(self._cluster.messages(_watch_requests(prefix, position, over))) as messages:
                async for response in messages:
                    _check_watch(response, position)
                    batch = _batch(response, position)
                    position = batch.position
                    yield batch
        except TooLarge as error:
            raise HistoryLost(f"too much at once: {error}") from None
        finally:
            over.set()  # grpc does not end the requests of a call that failed


def _check_watch(response: Any, position: Position) -> None:
    """Raises HistoryLost if the watch is over before it began, or has another history than the listing."""
    if response.compact_revision:
        raise HistoryLost(f"compacted up to {response.compact_revision}")
    now = Position(response.header.cluster_id, response.header.revision)
    if now.cluster != position.cluster or now.revision < position.revision:
        raise HistoryLost("etcd was replaced or restored from a backup", is_replaced=True)


async def _watch_requests(prefix: bytes, position: Position, over: asyncio.Event) -> AsyncIterator[Any]:
    """Asks for what happens after a position, until it is over."""
    create = rpc.WatchCreateRequest(
        key=prefix, range_end=end_of(prefix), start_revision=position.revision + 1, progress_notify=True
    )
    yield rpc.WatchRequest(create_request=create)
    await over.wait()  # the end of the requests would end the watch


def _batch(response: Any, position: Position) -> WatchBatch:
    """What a message of a watch says has happened since a position.

    The new position is that of the last event, for the header may be ahead of the events; only a progress message,
    which has none, means its header. Events from before the position, which a member that catches up may tell again
    (etcd issue 15220), are left out.
    """
    revision = position.revision
    if response.events:
        revision = max(revision, response.events[-1].kv.mod_revision)
    elif not response.created:
        revision = response.header.revision
    new = (event for event in response.events if event.kv.mod_revision > position.revision)
    return WatchBatch(tuple(map(_event, new)), Position(position.cluster, revision))


def _item(kv: Any) -> Item:
    return Item(kv.key, kv.value, kv.mod_revision, kv.lease, kv.create_revision)


def _event(event: Any) -> Event:
    return _item(event.kv) if event.type == _PUT else DeletedKey(event.kv.key, event.kv.mod_revision)


def _compare(guard: Guard) -> Any:
    if isinstance(guard, Unchanged):
        return rpc.Compare(
            result=rpc.Compare.EQUAL, target=rpc.Compare.MOD, key=guard.key, mod_revision=guard.revision
        )
    return rpc.Compare(
        result=rpc.Compare.LESS,
        target=rpc.Compare.MOD,
        key=guard.prefix,
        range_end=end_of(guard.prefix),
        mod_revision=guard.revision + 1,
    )


def _operation(write: Write) -> Any:
    if isinstance(write, Put):
        return rpc.RequestOp(request_put=rpc.PutRequest(key=write.key, value=write.value, lease=write.etcd_lease))
    return rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=write.key))
