"""Between etcd's messages and our values."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

from services.lease.stores.etcd.messages import rpc
from services.lease.stores.etcd.records import (
    Batch,
    Event,
    Gone,
    Guard,
    Item,
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


def page_of(response: Any, revision: int) -> Page:
    """The page that came."""
    items = tuple(map(_item, response.kvs))
    return Page(items, Position(response.header.cluster_id, revision or response.header.revision))


def read_request(keys: tuple[bytes, ...]) -> Any:
    """Asks for these keys at one revision."""
    return rpc.TxnRequest(success=[rpc.RequestOp(request_range=rpc.RangeRequest(key=key)) for key in keys])


def items_of(response: Any) -> tuple[Item | None, ...]:
    """The answer to a read_request."""
    kvs = (part.response_range.kvs for part in response.responses)
    return tuple(_item(found[0]) if found else None for found in kvs)


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
    which has none, means its header.
    """
    revision = position.revision
    if response.events:
        revision = response.events[-1].kv.mod_revision
    elif not response.created:
        revision = response.header.revision
    return Batch(tuple(map(_event, response.events)), Position(position.cluster, revision))


def _item(kv: Any) -> Item:
    return Item(kv.key, kv.value, kv.mod_revision, kv.lease, kv.create_revision)


def _event(event: Any) -> Event:
    return _item(event.kv) if event.type == _PUT else Gone(event.kv.key, event.kv.mod_revision)


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
