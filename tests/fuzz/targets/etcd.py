"""Keys and values in etcd, which anybody may write who has its password: leases, holders, sessions, configuration.

A case is lines: `KEY VALUE` puts a key under the prefix, a line without a blank deletes it.
"""

from collections.abc import Iterator
from typing import Final

from flannelette.services.core.leases.flannel_json import format_value, parse_lease
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, Upserted
from flannelette.services.lease.stores.etcd.prefix import Decoded, KeyKind, Prefix, decode, orphans_of
from flannelette.services.lease.stores.etcd.values import DeletedKey, Event, Item, Position, WatchBatch
from flannelette.services.lease.stores.store import Snapshot
from flannelette.services.runtime.lease.wire import step_from_bytes, step_to_bytes
from tests.etcd.prefix_items import CONFIG, KEYS, config

_CLUSTER: Final = 1
_GOOD: Final = {
    "10.5.200.0-24": (b'{"PublicIP":"10.99.0.200","PublicIPv6":null}', b"n200", b"10.99.0.200"),
    "10.5.201.0-24": (
        b'{"PublicIP":"10.99.0.201","PublicIPv6":null,"BackendType":"vxlan",'
        b'"BackendData":{"VNI":1,"VtepMAC":"02:00:00:00:00:c9"}}',
        b"n201",
        b"10.99.0.201",
    ),
}
_NODES: Final = frozenset(node.decode() for _, node, _ in _GOOD.values())


def _good() -> Iterator[Item]:
    yield config(CONFIG)
    for revision, (name, (value, node, address)) in enumerate(_GOOD.items(), 2):
        holder = b'{"node":"%s","public_ip":"%s","public_ipv6":""}' % (node, address)
        yield Item(KEYS.subnet(name), value, revision, 100 + revision, revision)
        yield Item(KEYS.holder(name), holder, revision, 100 + revision, revision)
        yield Item(KEYS.session(node.decode()), b"", revision, 100 + revision, revision)


_ITEMS: Final = tuple(_good())
_DECODED: Final = [decode(KEYS, item) for item in _ITEMS]


def etcd(data: bytes) -> None:
    """What others write, as events and as a listing, is served or refused, and leases of others stay as they are."""
    prefix = Prefix(KEYS).relisted(_DECODED, Position(_CLUSTER, 9), 0.0)
    before = prefix.snapshot()
    events = list(_events(data))
    touched = {name for event in events for name in _objects(event.key)}
    served = dict(before.leases)
    for event in events:
        if isinstance(event, Item):
            _read_alike(event)
        changed = prefix.fold(WatchBatch((event,), Position(_CLUSTER, event.revision)), 1.0)
        for change in changed.changes if changed else ():
            if isinstance(change, Upserted):
                served[change.lease.name] = change.lease
            else:
                del served[change.name]
    after = prefix.snapshot()
    assert after.leases == served, "what was told is what is served"
    _is_readable(after)
    _leaves_others(before, after, touched)
    while prefix.settle(1):
        pass
    orphans_of(prefix)
    listed = _listed(events)
    again = Prefix(KEYS).relisted(listed, prefix.position, 1.0)
    _leaves_others(before, again.snapshot(), touched)
    assert again.keys().keys() == prefix.keys().keys()


def _events(data: bytes) -> Iterator[Event]:
    created: dict[bytes, int] = {item.key: item.created for item in _ITEMS}
    for revision, line in enumerate(data.split(b"\n")[:16], 10):
        name, is_put, value = line.partition(b" ")
        key = KEYS.root + name
        if is_put:
            etcd_lease = 0 if value.startswith(b" ") else 7
            yield Item(key, value, revision, etcd_lease, created.setdefault(key, revision))
        elif created.pop(key, 0):
            yield DeletedKey(key, revision)


def _listed(events: list[Event]) -> list[Decoded]:
    there = {item.key: item for item in _ITEMS}
    for event in events:
        there.pop(event.key, None)
        if isinstance(event, Item):
            there[event.key] = event
    return [decode(KEYS, item) for item in there.values()]


def _objects(key: bytes) -> Iterator[str]:
    """The leases that a key is about."""
    kind, name = KEYS.classify(key)
    yield name
    if kind is KeyKind.SESSION:
        yield from (lease for lease, (_, node, _) in _GOOD.items() if node.decode() == name)


def _read_alike(item: Item) -> None:
    """What is written as flannel writes it is read without a JSON parser; a blank more, and it is read by one."""
    one, other = decode(KEYS, item), decode(KEYS, item._replace(value=item.value + b" "))
    assert (one.lease, one.holder, bool(one.error)) == (other.lease, other.holder, bool(other.error))


def _leaves_others(before: Snapshot, after: Snapshot, touched: set[str]) -> None:
    for name in _GOOD.keys() - touched:
        assert after.leases[name] == before.leases[name], f"{name} has changed"
        assert name not in after.refused


def _is_readable(snapshot: Snapshot) -> None:
    """Every lease that is served reaches nodes as it is, and is written as it was read."""
    for lease in snapshot.leases.values():
        step = Step(changes=(Upserted(lease),))
        assert step_from_bytes(step_to_bytes(step)) == step
        _is_written(lease)
    for name, reason in snapshot.refused.items():
        assert name.isprintable()
        assert len(str(reason).encode()) < 5_000


def _is_written(lease: Lease) -> None:
    again = parse_lease(lease.name, format_value(lease), node=lease.node, reserved=lease.reserved)
    assert [(s.cidr, s.public_address) for s in again.subnets] == [(s.cidr, s.public_address) for s in lease.subnets]
