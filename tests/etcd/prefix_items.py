"""Keys of etcd's prefix as a listing or an event has them, and what a lease service tells of them.

seen = Followed(config(CONFIG), lease())         # what is listed
event = seen.happens(deleted(KEYS.subnet(NAME), 11))   # what the watch of etcd says; what watchers are told of it
"""

from typing import Any

from flannelette.services.core.family import Family
from flannelette.services.core.ipam import Usage
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Upserted
from flannelette.services.lease.stores.etcd.prefix import Holder, Keyspace, Prefix, decode, format_holder, orphans_of
from flannelette.services.lease.stores.etcd.transactor import with_released
from flannelette.services.lease.stores.etcd.values import (
    Delete,
    DeletedKey,
    Event,
    Item,
    Position,
    Put,
    Transaction,
    WatchBatch,
)
from flannelette.services.lease.stores.store import Snapshot

KEYS = Keyspace("/net")
NAME, OTHER = "10.5.1.0-24", "10.5.2.0-24"
CONFIG = b'{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
VALUE = b'{"PublicIP":"10.99.0.1","PublicIPv6":null}'
MOVED = b'{"PublicIP":"10.99.0.9","PublicIPv6":null}'
HOLDER = b'{"node":"n1","public_ip":"10.99.0.1","public_ipv6":""}'


def key(text: str | bytes, value: bytes = b"", revision: int = 2, etcd_lease: int = 0, created: int = 0) -> Any:
    """A key at a revision, which hangs on an etcd lease, or (0) on none."""
    return Item(text.encode() if isinstance(text, str) else text, value, revision, etcd_lease, created)


def deleted(item: Any, revision: int) -> Any:
    """A key that was deleted: its name in bytes, or an item of it."""
    return DeletedKey(item if isinstance(item, bytes) else item.key, revision)


def config(value: bytes, revision: int = 1) -> Any:
    return Item(b"/net/config", value, revision, 0)


def lease(name: str = NAME, value: bytes = VALUE, revision: int = 2, etcd_lease: int = 7) -> Any:
    return Item(KEYS.subnet(name), value, revision, etcd_lease)


def holder(name: str = NAME, value: bytes = HOLDER, revision: int = 2) -> Any:
    return Item(KEYS.holder(name), value, revision, 7)


def holder_value(node: str, address: str) -> bytes:
    return format_holder(Holder(node, address, ""))


def session(node: str = "n1", revision: int = 3) -> Any:
    return Item(KEYS.session(node), b"{}", revision, 8)


def released(*names: str, revision: int) -> Any:
    """The note beside a deletion of these leases which somebody asked a lease service for."""
    put = with_released(KEYS, Transaction((), tuple(Delete(KEYS.subnet(name)) for name in names))).writes[-1]
    assert isinstance(put, Put)
    return Item(put.key, put.value, revision, put.etcd_lease)


def is_noted(key: bytes, *, is_deleted: bool) -> bool:
    """Whether a transaction that deletes or puts this key gets such a note."""
    transaction = Transaction((), (Delete(key) if is_deleted else Put(key, VALUE),))
    return with_released(KEYS, transaction) != transaction


class Followed:
    """A lease service that has listed these keys, and follows them."""

    def __init__(self, *items: Item) -> None:
        self._prefix = Prefix(KEYS)
        self.relist(*items, revision=10)

    def relist(self, *items: Item, revision: int) -> None:
        """The changes since the last listing cannot be had, and all is listed again."""
        listed = [decode(KEYS, item) for item in items]
        self._prefix = self._prefix.relisted(listed, Position(1, revision), 0.0)

    def happens(self, *events: Event) -> Any:
        """The watch of etcd says this in one message; returns what watchers are told, an event or None."""
        return self._prefix.fold(WatchBatch(events, Position(1, events[-1].revision)), 0.0)

    @property
    def told(self) -> Snapshot:
        """What who comes now is told."""
        return self._prefix.snapshot()

    @property
    def leases(self) -> dict[str, Lease]:
        return dict(self._prefix.snapshot().leases)

    @property
    def ended(self) -> set[str]:
        """The nodes whose end of a session is remembered."""
        assert self._prefix.claims is not None
        return set(self._prefix.session_ended)

    def names_of(self, node: str) -> list[str]:
        """The leases that a decision takes for this node's."""
        return [claim.name for claim in self._prefix.claims.of_node(node)]

    def is_reserved(self, name: str) -> bool:
        return self._prefix.entries[name].reserved

    def usage(self, family: Family) -> Usage:
        """How full the network is."""
        return self._prefix.usage(family)

    def reached(self, revision: int) -> None:
        """Nothing happens up to there."""
        self._prefix.position = Position(1, revision)

    @property
    def decisions(self) -> tuple[object, ...]:
        """All that a decision sees."""
        prefix = self._prefix
        return (
            orphans_of(prefix),
            prefix.claims.all(),
            [prefix.claims.of_node(node) for node in ("", "n1", "n2")],
            prefix.pool.families[0].usage,
            set(prefix.snapshot().refused),
            prefix.revision,
        )


def nodes(event: Any) -> list[tuple[str, str]]:
    """Which leases an event tells, and whose they are."""
    return [(c.lease.name, c.lease.node) for c in event.changes if isinstance(c, Upserted)]
