"""Deletes a key that an operator wants gone, if it still is what he saw."""

from services.core.errors import LostRace, NotFound
from services.core.lease import Lease
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.keyspace import Keyspace, Kind
from services.lease.stores.etcd.mirror import Mirror
from services.lease.stores.etcd.records import Delete, Item, Position, Transaction, Unchanged
from services.lease.stores.etcd.released import note_released


async def discard(client: EtcdClient, keyspace: Keyspace, decoder: Decoder, name: str, seen: Lease | str) -> None:
    """See Store.discard. The holder beside a subnet key goes with it; guarded by the revisions that were read."""
    missing = True
    for key in keyspace.keys_called(name):
        kind, lease_name = keyspace.classify(key)
        keys = (key, keyspace.holder(lease_name)) if kind is Kind.SUBNET else (key,)
        items = await client.read(*keys)
        missing = missing and items[0] is None
        if items[0] is not None and _what_is(keyspace, decoder, items, name) == seen:
            guards = (Unchanged(k, item.revision if item else 0) for k, item in zip(keys, items, strict=True))
            deletes = (Delete(item.key) for item in items if item)
            if await client.transact(note_released(keyspace, Transaction(tuple(guards), tuple(deletes)))):
                return
    if missing:
        raise NotFound(f"etcd has no key {name} any more")
    raise LostRace(f"the key {name} is something else by now: look at the quarantine again")


def _what_is(keyspace: Keyspace, decoder: Decoder, items: tuple[Item | None, ...], name: str) -> object:
    """What a listing of nothing else would say of the name."""
    known = decoder.read_all(keyspace, filter(None, items))
    listed = Mirror(keyspace, decoder).replace(known, Position(0, 0))
    return listed.leases.get(name) or listed.refused.get(name)
