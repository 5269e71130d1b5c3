"""Between etcd's messages and our values."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from services.lease.stores.etcd.rpc.messages import rpc
from services.lease.stores.etcd.rpc.values import (
    Batch,
    DeletedKey,
    Event,
    Guard,
    Item,
    Newest,
    Page,
    Position,
    Put,
    Transaction,
    Unchanged,
    Write,
    end_of,
)

_PUT: Final = 0
"""mvccpb.Event.PUT"""


def range_request(key: bytes, prefix: bytes, limit: int, revision: int) -> Any:
    """Asks for a page of the keys with a prefix, from a key on."""
    return rpc.RangeRequest(key=key, range_end=end_of(prefix), limit=limit, revision=revision)


def page_of(response: Any, position: Position | None) -> Page:
    """The page that came, as part of the listing at that position (None: it begins)."""
    items = tuple(map(_item, response.kvs))
    return Page(
        items, Position(response.header.cluster_id, position.revision if position else response.header.revision)
    )


def newest_request(prefix: bytes, revision: int) -> Any:
    """Asks for the key with the prefix that was written last before or at a revision, and for how many there are."""
    return rpc.RangeRequest(
        key=prefix,
        range_end=end_of(prefix),
        revision=revision,
        limit=1,
        sort_order=rpc.RangeRequest.DESCEND,
        sort_target=rpc.RangeRequest.MOD,
    )


def newest_of(response: Any) -> Newest:
    """The answer to a newest_request: of several keys of one revision, one."""
    return Newest(response.count, frozenset(map(_item, response.kvs)))


def read_request(key: bytes, revision: int) -> Any:
    """Asks for one key, as it was at a revision; 0: as it is now."""
    return rpc.RangeRequest(key=key, revision=revision)


def item_of(response: Any) -> Item | None:
    """The answer to a read_request."""
    return _item(response.kvs[0]) if response.kvs else None


def txn_request(transaction: Transaction) -> Any:
    """A transaction."""
    return rpc.TxnRequest(
        compare=[_compare(guard) for guard in transaction.guards],
        success=[_operation(write) for write in transaction.writes],
    )


async def watch_requests(prefix: bytes, position: Position, over: asyncio.Event) -> AsyncIterator[Any]:
    """Asks for what happens after a position, until it is over."""
    create = rpc.WatchCreateRequest(
        key=prefix, range_end=end_of(prefix), start_revision=position.revision + 1, progress_notify=True
    )
    yield rpc.WatchRequest(create_request=create)
    await over.wait()  # the end of the requests would end the watch


def batch_of(response: Any, position: Position) -> Batch:
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
    return Batch(tuple(map(_event, new)), Position(position.cluster, revision))


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
