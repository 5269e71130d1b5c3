"""The transactions that take, extend and give back a lease. Pure.

Every write is guarded by the revisions of the keys that it replaces, so that it happens on what was looked at or
not at all; repeating one that had happened (its answer was lost) changes nothing.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from services.core.conflicts import identities_in, identities_of
from services.core.family import Network
from services.core.flannel import format_value
from services.core.lease import Lease, LeaseRequest, Subnet, lease_key
from services.lease.allocation import Allocation
from services.lease.stores.etcd.entry import Entry
from services.lease.stores.etcd.holders import Holder, format_holder, holder_of
from services.lease.stores.etcd.index import Index
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

_MOST: Final = 120
"""Guards or writes in one transaction; etcd takes 128."""


def taking(keyspace: Keyspace, index: Index, allocation: Allocation, etcd_lease: int) -> Transaction:
    """Makes a decision true; without writes if it is.

    No two leases made like this overlap, or share an address, a MAC or a key: what adds a subnet or changes one of
    these is guarded by "no subnet key was put since", so it was decided on all that is there. (A guard on the new key
    alone, as flanneld's, lets 10.5.52.0-24 pass beside 10.5.52.0-24&fd00::-64 or 10.5.52.0-25, and one address beside
    itself.)
    It is guarded by the configuration that was decided on, too, and by the absence of the sessions of nodes that
    lose something because they are not alive.
    """
    lease = allocation.lease
    current = index.entries[lease.name] if allocation.current else None
    items = (current.item if current else None, current.holder_item if current else index.orphans.get(lease.name))
    # Of an overwritten lease the holder key is put in any case: it may say what it should, on another etcd lease.
    is_overwritten = current is not None and current.lease is None
    writes = _replacing(
        keyspace,
        lease.name,
        (items[0], None) if is_overwritten else items,
        (format_value(lease).encode(), format_holder(holder_of(lease))),
        etcd_lease,
        reserved=current is not None and current.reserved,
        bound=current is not None and current.bound,
    )
    guards = [*_as_seen(keyspace, lease.name, *items), Unchanged(keyspace.config, _revision(index.config))]
    for claim in allocation.given_up:
        surrender = giving_back(keyspace, index.entries[claim.name])
        guards += surrender.guards
        writes += surrender.writes
    guards += [Unchanged(keyspace.session(node), 0) for node in sorted(allocation.rivals)]
    if current is None or current.claim.identities != identities_of(lease):
        guards.append(NothingPutSince(keyspace.subnets, index.revision))
    return Transaction(tuple(guards), tuple(writes))


class Joined:
    """Several decisions in one transaction: all or none. None of them may touch what another one does."""

    def __init__(self) -> None:
        self._guards: dict[Guard, None] = {}
        self._writes: dict[bytes, Write] = {}
        self._whose: set[object] = set()

    @property
    def transaction(self) -> Transaction:
        """All that were taken."""
        return Transaction(tuple(self._guards), tuple(self._writes.values()))

    def take(self, transaction: Transaction, request: LeaseRequest) -> bool:
        """Adds one, if there is room and neither its node, nor an address or a key of it, is in already."""
        whose = {request.node, *identities_in(request.wishes)}
        keys = {write.key for write in transaction.writes}
        guards = self._guards.keys() | transaction.guards
        is_full = max(len(guards), len(keys) + len(self._writes)) > _MOST
        if self._whose and (is_full or self._whose & whose or self._writes.keys() & keys):
            return False
        self._whose |= whose
        self._guards |= dict.fromkeys(transaction.guards)
        self._writes |= {write.key: write for write in transaction.writes}
        return True


def extending(keyspace: Keyspace, entry: Entry, etcd_lease: int) -> Transaction:
    """Hangs a lease and its holder on this etcd lease; without writes if they do."""
    items = (entry.item, entry.holder_item)
    values = (entry.item.value, entry.holder_item.value if entry.holder_item else b"")
    return Transaction(
        _as_seen(keyspace, entry.name, *items),
        tuple(
            _replacing(keyspace, entry.name, items, values, etcd_lease, reserved=entry.reserved, bound=entry.bound)
        ),
    )


def giving_back(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Deletes a lease and its holder. Of a reservation only the holder; one that is bound to its node keeps it."""
    guards = _as_seen(keyspace, entry.name, entry.item, entry.holder_item)
    if entry.bound:
        return Transaction(guards, _setting_aside(keyspace, entry.name, entry.claim.cidrs, entry.node))
    writes: list[Write] = [] if entry.reserved else [Delete(keyspace.subnet(entry.name))]
    if entry.holder_item:
        writes.append(Delete(keyspace.holder(entry.name)))
    return Transaction(guards, tuple(writes))


def reserving(keyspace: Keyspace, index: Index, subnets: tuple[Subnet, ...], node: str) -> Transaction:
    """Sets new subnets aside; guarded as a new lease is."""
    name, cidrs = lease_key(subnet.cidr for subnet in subnets), [subnet.cidr for subnet in subnets]
    guards = (
        *_as_seen(keyspace, name, None, index.orphans.get(name)),
        Unchanged(keyspace.config, _revision(index.config)),
        NothingPutSince(keyspace.subnets, index.revision),
    )
    return Transaction(guards, _setting_aside(keyspace, name, cidrs, node))


def keeping(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Makes a node's lease its reservation, in use: neither key runs out any more; without writes if it is one."""
    writes = [
        Put(key, item.value)
        for key, item in ((keyspace.subnet(entry.name), entry.item), (keyspace.holder(entry.name), entry.holder_item))
        if item and item.etcd_lease
    ]
    return Transaction(_as_seen(keyspace, entry.name, entry.item, entry.holder_item), tuple(writes))


def unreserving(keyspace: Keyspace, entry: Entry, etcd_lease: int) -> Transaction:
    """Makes a reservation that is in use an ordinary lease of its node."""
    assert entry.holder_item is not None  # noqa: S101 - in use means that it has a holder
    writes = (
        Put(keyspace.subnet(entry.name), entry.item.value, etcd_lease),
        Put(keyspace.holder(entry.name), entry.holder_item.value, etcd_lease),
    )
    return Transaction(_as_seen(keyspace, entry.name, entry.item, entry.holder_item), writes)


def freeing(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Deletes a lease or reservation, whatever it is."""
    writes: list[Write] = [Delete(keyspace.subnet(entry.name))]
    if entry.holder_item:
        writes.append(Delete(keyspace.holder(entry.name)))
    return Transaction(_as_seen(keyspace, entry.name, entry.item, entry.holder_item), tuple(writes))


def reclaiming(keyspace: Keyspace, entry: Entry) -> Transaction:
    """Deletes a lease, unless its node comes back meanwhile."""
    freed = freeing(keyspace, entry)
    absent = (Unchanged(keyspace.session(entry.node), 0),) if entry.node else ()
    return Transaction((*freed.guards, *absent), freed.writes)


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
    *,
    reserved: bool,
    bound: bool,
) -> list[Write]:
    """Puts the subnet and the holder key where value or etcd lease differ. A reservation never gets an etcd lease."""
    wanted = (
        Put(keyspace.subnet(name), values[0], 0 if reserved else etcd_lease),
        Put(keyspace.holder(name), values[1], 0 if bound else etcd_lease),
    )
    return [
        put
        for put, item in zip(wanted, items, strict=True)
        if item is None or (item.value, item.etcd_lease) != (put.value, put.etcd_lease)
    ]


def _setting_aside(keyspace: Keyspace, name: str, cidrs: Sequence[Network], node: str) -> tuple[Write, ...]:
    """A reservation that nobody uses, for this node or (empty) for nobody: its value has no address."""
    unused = Lease(name, node, tuple(map(Subnet, cidrs)), reserved=True)
    subnet = Put(keyspace.subnet(name), format_value(unused).encode())
    return (subnet, Put(keyspace.holder(name), format_holder(Holder(node, "", "")))) if node else (subnet,)


def _as_seen(keyspace: Keyspace, name: str, item: Item | None, holder_item: Item | None) -> tuple[Guard, ...]:
    return (
        Unchanged(keyspace.subnet(name), _revision(item)),
        Unchanged(keyspace.holder(name), _revision(holder_item)),
    )


def _revision(item: Item | None) -> int:
    return item.revision if item else 0
