"""The transactions that take, extend and give back a lease. Pure.

Every write is guarded by the revisions of the keys that it replaces, so that it happens on what was looked at or
not at all; repeating one that had happened (its answer was lost) changes nothing.
"""

from collections.abc import Mapping

from services.core.flannel import format_value
from services.core.lease import Lease
from services.lease.stores.etcd.decision import Decision
from services.lease.stores.etcd.holders import format_holder, holder_of
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.records import (
    Delete,
    Guard,
    Item,
    NothingPutSince,
    Put,
    Transaction,
    Unchanged,
    Write,
)
from services.lease.stores.etcd.table import Entry, Table


def taking(keyspace: Keyspace, table: Table, decision: Decision, etcd_lease: int) -> Transaction:
    """Makes a decision true; without writes if it is.

    No two leases made like this overlap or share an address: what adds a subnet or changes an address is guarded
    by "no subnet key was put since the listing", so it was decided on all that is there. (A guard on the new key
    alone, as flanneld's, lets 10.5.52.0-24 pass beside 10.5.52.0-24&fd00::-64 or 10.5.52.0-25, and one address
    beside itself.) It is guarded by the configuration that was decided on, too.
    """
    lease, current = decision.lease, decision.current
    holder_item = current.holder_item if current else table.orphans.get(lease.name)
    writes = _replacing(
        keyspace,
        lease.name,
        (current.item if current else None, holder_item),
        (format_value(lease).encode(), format_holder(holder_of(lease))),
        etcd_lease,
    )
    guards = [*_as_seen(keyspace, lease.name, current.item if current else None, holder_item)]
    for entry in decision.given_up:
        surrender = giving_back(keyspace, entry)
        guards += surrender.guards
        writes += surrender.writes
    guards.append(Unchanged(keyspace.config, _revision(table.config)))
    if current is None or _addresses(current.lease) != _addresses(lease):
        guards.append(NothingPutSince(keyspace.subnets, table.revision))
    return Transaction(tuple(guards), tuple(writes))


def extending(keyspace: Keyspace, entry: Entry, etcd_lease: int) -> Transaction:
    """Hangs a lease and its holder on this etcd lease; without writes if they do."""
    items = (entry.item, entry.holder_item)
    values = (entry.item.value, entry.holder_item.value if entry.holder_item else b"")
    return Transaction(
        _as_seen(keyspace, entry.name, *items),
        tuple(_replacing(keyspace, entry.name, items, values, etcd_lease)),
    )


def giving_back(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Deletes a lease and its holder; of a reservation only the holder."""
    writes: list[Write] = [] if entry.reserved else [Delete(keyspace.subnet(entry.name))]
    if entry.holder_item:
        writes.append(Delete(keyspace.holder(entry.name)))
    return Transaction(_as_seen(keyspace, entry.name, entry.item, entry.holder_item), tuple(writes))


def clearing(keyspace: Keyspace, orphans: Mapping[str, Item]) -> tuple[Transaction, ...]:
    """Deletes holders that have no lease, one by one."""
    return tuple(
        Transaction(_as_seen(keyspace, name, None, item), (Delete(keyspace.holder(name)),))
        for name, item in orphans.items()
    )


def _replacing(
    keyspace: Keyspace,
    name: str,
    items: tuple[Item | None, Item | None],
    values: tuple[bytes, bytes],
    etcd_lease: int,
) -> list[Write]:
    """Puts the subnet and the holder key where value or etcd lease differ. A reservation never gets an etcd lease."""
    reserved = items[0] is not None and items[0].etcd_lease == 0
    wanted = (
        Put(keyspace.subnet(name), values[0], 0 if reserved else etcd_lease),
        Put(keyspace.holder(name), values[1], etcd_lease),
    )
    return [
        put
        for put, item in zip(wanted, items, strict=True)
        if item is None or (item.value, item.etcd_lease) != (put.value, put.etcd_lease)
    ]


def _as_seen(keyspace: Keyspace, name: str, item: Item | None, holder_item: Item | None) -> tuple[Guard, ...]:
    return (
        Unchanged(keyspace.subnet(name), _revision(item)),
        Unchanged(keyspace.holder(name), _revision(holder_item)),
    )


def _revision(item: Item | None) -> int:
    return item.revision if item else 0


def _addresses(lease: Lease | None) -> tuple[object, ...]:
    return tuple(subnet.public_address for subnet in lease.subnets) if lease else ()
