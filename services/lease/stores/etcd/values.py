"""What etcd holds and is asked to do, as plain values: protobuf ends in the client."""

from typing import NamedTuple, TypeAlias

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.frozen import frozen


class Item(NamedTuple):
    """One key at one revision. A tuple, because snapshots have many and compare them."""

    key: bytes
    value: bytes
    revision: int
    """ModRevision: the revision that wrote it."""
    etcd_lease: int
    """The etcd lease it hangs on; 0: none, it never expires."""
    created: int = 0
    """CreateRevision: the revision that made it."""


class DeletedKey(NamedTuple):
    """A key that was deleted or ran out."""

    key: bytes
    revision: int
    """The revision that deleted it."""


Event: TypeAlias = Item | DeletedKey


class Page(NamedTuple):
    """A part of a listing; every part of one listing is of the same revision."""

    items: tuple[Item, ...]
    position: "Position"


class Position(NamedTuple):
    """How far a listing or a watch is, in the history of one cluster."""

    cluster: int
    revision: int


class WatchBatch(NamedTuple):
    """One message of a watch: whole revisions, in order. Without events it only moves the position on."""

    events: tuple[Event, ...]
    position: Position


class Newest(NamedTuple):
    """What tells one history from another at a revision, without a listing: etcd lease numbers are random."""

    keys: int
    """How many there are."""
    items: frozenset[Item]
    """Keys that were written last, all in one revision."""

    def is_in(self, told: "Newest") -> bool:
        """Whether it agrees with what etcd told, which is one of the newest keys."""
        return self.keys == told.keys and self.items >= told.items


@frozen
class Unchanged:
    """Guard: the key is as this revision wrote it; 0: it does not exist."""

    key: bytes
    revision: int


@frozen
class NothingPutSince:
    """Guard: no key under the prefix was put after this revision (deleted ones do not count)."""

    prefix: bytes
    revision: int


Guard: TypeAlias = Unchanged | NothingPutSince


@frozen
class Put:
    """Write: the value, on an etcd lease (0: on none, so that it never expires)."""

    key: bytes
    value: bytes
    etcd_lease: int = 0


@frozen
class Delete:
    """Write: the key is gone."""

    key: bytes


Write: TypeAlias = Put | Delete


@frozen
class Transaction:
    """All writes if all guards hold, else none."""

    guards: tuple[Guard, ...]
    writes: tuple[Write, ...]


class HistoryLost(Exception):
    """The changes since a revision cannot be had: compacted, or another cluster answers. List again."""

    def __init__(self, reason: str, *, is_replaced: bool = False) -> None:
        super().__init__(reason)
        self.is_replaced = is_replaced
        """etcd has another history now: it was replaced, emptied or restored."""


class NotAllowed(Unavailable):
    """etcd answers, but not to us: only an operator can change that."""


class Untrue(Unavailable):
    """etcd answers what etcd cannot answer: nothing that it has told before counts either. List again."""


class TooLarge(Exception):
    """The answer is larger than we take at once. Ask for less."""


class EtcdLeaseGone(Exception):
    """The etcd lease of a write ran out or was revoked. Nothing was written."""


class EtcdLeaseExists(Exception):
    """There is an etcd lease of this number already."""


def end_of(prefix: bytes) -> bytes:
    """The first key after every key with this prefix, which must not end in 0xff."""
    return prefix[:-1] + bytes([prefix[-1] + 1])
