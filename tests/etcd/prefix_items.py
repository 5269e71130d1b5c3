"""Keys of etcd's prefix as a listing or an event has them, and the pure model made of them."""

from flannelette.services.core.leases.table import Upserted
from flannelette.services.lease.stores.etcd.keys import Keyspace, decode
from flannelette.services.lease.stores.etcd.prefix import Prefix
from flannelette.services.lease.stores.etcd.rpc.values import Batch, Event, Item, Position
from flannelette.services.lease.stores.store import Changed

KEYS = Keyspace("/net")
NAME, OTHER = "10.5.1.0-24", "10.5.2.0-24"
CONFIG = b'{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
VALUE = b'{"PublicIP":"10.99.0.1","PublicIPv6":null}'
MOVED = b'{"PublicIP":"10.99.0.9","PublicIPv6":null}'
HOLDER = b'{"node":"n1","public_ip":"10.99.0.1","public_ipv6":""}'


def config(value: bytes, revision: int = 1) -> Item:
    return Item(b"/net/config", value, revision, 0)


def lease(name: str = NAME, value: bytes = VALUE, revision: int = 2, etcd_lease: int = 7) -> Item:
    return Item(KEYS.subnet(name), value, revision, etcd_lease)


def holder(name: str = NAME, value: bytes = HOLDER, revision: int = 2) -> Item:
    return Item(KEYS.holder(name), value, revision, 7)


def prefix_of(*items: Item) -> Prefix:
    return relisted(Prefix(KEYS), *items, revision=10)


def relisted(prefix: Prefix, *items: Item, revision: int) -> Prefix:
    return prefix.relisted([decode(KEYS, item) for item in items], Position(1, revision), 0.0)


def fold(prefix: Prefix, *events: Event) -> Changed | None:
    return prefix.fold(Batch(events, Position(1, events[-1].revision)), 0.0)


def nodes(event: Changed | None) -> list[tuple[str, str]]:
    assert isinstance(event, Changed)
    return [(c.lease.name, c.lease.node) for c in event.changes if isinstance(c, Upserted)]
