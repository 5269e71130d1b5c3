"""The transactions that take, extend, give back and set aside a lease in etcd. Pure.

Every write is guarded by the revisions of the keys that it replaces, so that it happens on what was looked at or
not at all; repeating one that had happened (its answer was lost) changes nothing.
"""

from flannelette.services.core.ipam.allocation import Allocation
from flannelette.services.core.ipam.reservations import set_aside
from flannelette.services.core.leases.conflicts import identities_of
from flannelette.services.core.leases.flannel_json import format_value
from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.stores.etcd.entry import Entry
from flannelette.services.lease.stores.etcd.keys import Decoded, Holder, KeyKind, Keyspace, format_holder, holder_of
from flannelette.services.lease.stores.etcd.prefix import Prefix, orphans_of
from flannelette.services.lease.stores.etcd.rpc.values import (
    Delete,
    Guard,
    Item,
    NothingPutSince,
    Put,
    Transaction,
    Unchanged,
    Write,
)


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
