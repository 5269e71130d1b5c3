"""Steps of the lease table: the difference that an event of the store makes, and steps as bytes. Pure.

A difference is by value: no difference, no message. Bytes are made once and sent to every watcher: a serialised
protobuf message is the concatenation of its fields, and concatenating two messages appends their repeated fields to
each other. So a Change, serialised as a message that holds nothing else, is a piece from which any step that
contains it is joined: a snapshot of 10,000 leases is joined from pieces that were made when the leases changed, not
from 10,000 messages built again for each watcher.

The order of the pieces is the order of the changes. A field that may come once only (`network`, `cursor`, ...) must
be in one piece only: two would be merged.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Final, NamedTuple

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import (
    Change,
    Removed,
    Step,
    StoreStatus,
    Table,
    Upserted,
    changes_between,
)
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.stores.store import Changed, Snapshot, StoreEvent
from flannelette.services.runtime.lease.wire import change_to_bytes, step_to_bytes

NOTHING: Final = Step()
_NO_NETWORK: Final = "the store has no network configuration"


def step_of(table: Table, event: StoreEvent) -> Step:
    """The step that takes the table where the event says; NOTHING if it is there already.

    A Snapshot after a reconnect is a difference like any other. Before the first one no lease changes: it will
    hold all of them.
    """
    match event:
        case StoreStatus():
            return Step(store=event if event != table.store else None)
        case Snapshot():
            reason = event.network_error or ("" if event.network else _NO_NETWORK)
            network, error = _network_change(table, event.network, reason)
            store = table.store
            return Step(
                changes=changes_between(table.leases, event.leases),
                network=network,
                network_error=error,
                store=StoreStatus(store.kind, True) if store and not store.connected else None,
                synced=not table.synced,
                awaited=event.awaited if event.awaited != table.awaited else None,
            )
        case Changed():
            network, error = _network_change(table, event.network, event.network_error)
            changes = _effective(table.leases, event.changes) if table.synced else ()
            awaited = event.awaited if event.awaited != table.awaited else None
            return Step(changes=changes, network=network, network_error=error, awaited=awaited)


def _network_change(table: Table, network: NetworkConfig | None, error: str) -> tuple[NetworkConfig | None, str]:
    """A configuration that is right again clears the error, so it is sent even if it is the last good one."""
    new = network if network is not None and (network != table.network or table.network_error) else None
    return new, error if new or error != table.network_error else ""  # a configuration clears the error


def _effective(leases: Mapping[str, Lease], changes: Iterable[Change]) -> tuple[Change, ...]:
    """The changes without those that change nothing when applied in order."""
    seen: dict[str, Lease | None] = {}
    kept: list[Change] = []
    for change in changes:
        name, after = change.name, change.after
        before = seen[name] if name in seen else leases.get(name)
        if before != after:
            kept.append(Upserted(after) if after else Removed(name))
        seen[name] = after
    return tuple(kept)


MOST_CHANGES: Final = 500
"""Changes in one message at most, as lease.proto promises."""
MOST_BYTES: Final = 1 << 16
"""Bytes of one message at most, unless a single change is longer: what a reader that does not read keeps in our
memory."""

RESET: Final = step_to_bytes(Step(reset=True))
SYNCED: Final = step_to_bytes(Step(synced=True))


_FEW: Final = 100
"""So many names are put where they belong one by one; with more, all are sorted."""


class SnapshotPart(NamedTuple):
    """Some leases that follow each other by name."""

    body: bytes
    last: str
    """The name of the last one: where the next chunk goes on."""
    ends: bool
    """No further one follows."""


class EncodedLeases:
    """Each lease is serialised when the first watcher needs it, and then kept until it changes.

    Thousands of watchers may each be at another lease of a snapshot: a position is a name, not a copy of the table.
    """

    def __init__(self, leases: Mapping[str, Lease]) -> None:
        self._leases = leases
        """The table's own, which changes."""
        self._names: list[str] = []
        self._made: dict[str, bytes] = {}

    def follow(self, names: Set[str]) -> None:
        """Follows a change of the leases of these names: added, changed or removed."""
        for name in names:
            self._made.pop(name, None)
        if len(names) > _FEW:
            self._names = sorted(self._leases)
            return
        for name in names:
            index = bisect_left(self._names, name)
            is_listed = index < len(self._names) and self._names[index] == name
            if name not in self._leases and is_listed:
                del self._names[index]
            elif name in self._leases and not is_listed:
                self._names.insert(index, name)

    def keep(self, name: str, piece: bytes) -> None:
        """The lease, if there still is one, is serialised already."""
        if name in self._leases:
            self._made[name] = piece

    def chunk(self, after: str) -> SnapshotPart:
        """The leases after a name, as many as a message holds; the empty name is before all others."""
        start, size = bisect_right(self._names, after), 0
        pieces: list[bytes] = []
        for name in self._names[start : start + MOST_CHANGES]:
            piece = self._piece(name)
            size += len(piece)
            if pieces and size > MOST_BYTES:
                break
            pieces.append(piece)
        stop = start + len(pieces)
        return SnapshotPart(b"".join(pieces), self._names[stop - 1] if pieces else "", stop == len(self._names))

    def of_all(self) -> Iterator[tuple[str, bytes]]:
        """Every lease by its name, for who reads a few at a time while the table may change."""
        for name in list(self._leases):
            if name in self._leases:
                yield name, self._piece(name)

    def _piece(self, name: str) -> bytes:
        piece = self._made.get(name)
        if piece is None:
            piece = self._made[name] = change_to_bytes(Upserted(self._leases[name]))
        return piece
