"""The lease table, and how watchers get it: a snapshot, then every change, serialised once for all of them.

The broker keeps the table equal to the store, with events that `admission` has let pass; the log has the recent
changes, for watchers that resume from a cursor; a stream says what a watcher needs next. No store, no check of a
lease and no gRPC belongs here.

A difference is by value: no difference, no message. Bytes are made once and sent to every watcher: a serialised
protobuf message is the concatenation of its fields, and concatenating two messages appends their repeated fields to
each other. So a Change, serialised as a message that holds nothing else, is a piece from which any step that
contains it is joined: a snapshot of 10,000 leases is joined from pieces that were made when the leases changed, not
from 10,000 messages built again for each watcher.

The order of the pieces is the order of the changes. A field that may come once only (`network`, `cursor`, ...) must
be in one piece only: two would be merged.
"""

import asyncio
import time
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Mapping, Set
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.frozen import frozen
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import (
    NO_OVERRIDES,
    Change,
    NodeOverrides,
    PublicIpOverrides,
    Removed,
    Step,
    StoreStatus,
    Table,
    Upserted,
    changes_between,
    overrides_between,
)
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease import metrics
from flannelette.services.lease.events import LeaseJournal, NodeEvents, tell_lease, tell_step
from flannelette.services.lease.imports.policy import Foreign, OwnLeases
from flannelette.services.lease.progress import ConnectedNodes, Notifier, Reports
from flannelette.services.lease.stores.store import Changed, LostLease, Snapshot, StoreEvent
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


_OVERHEAD: Final = 200
"""Bytes that a change takes in memory beside its message, about."""


@frozen
class LogEntry:
    """One step as pieces: what has not changed is empty."""

    changes: tuple[tuple[str, bytes], ...]
    """Name of the lease and piece, in order."""
    network: bytes = b""
    network_error: bytes = b""
    store: bytes = b""
    awaited: bytes = b""

    @property
    def size(self) -> int:
        """The bytes of memory that the entry takes, roughly."""
        fixed = len(self.network) + len(self.network_error) + len(self.store) + len(self.awaited) + _OVERHEAD
        return fixed + sum(len(piece) + _OVERHEAD for _, piece in self.changes)


class LogMessage(NamedTuple):
    """The next message for a watcher."""

    message: bytes
    position: int
    """The watcher's position after it."""


class ChangeLog:
    """The last entries, numbered from 1. What one watcher needs is made once for all that need the same."""

    def __init__(self, epoch: str, most_entries: int, most_bytes: int) -> None:
        self.epoch = epoch
        self.last = 0
        """Number of the newest entry."""
        self.bytes = 0
        self._most_entries = most_entries
        self._most_bytes = most_bytes
        self._entries: dict[int, LogEntry] = {}
        """Entries by number; the oldest comes first."""
        self._made: dict[tuple[int, bool], LogMessage] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def cursor(self) -> str:
        """The cursor of the newest entry."""
        return f"{self.epoch}:{self.last}"

    @property
    def end(self) -> bytes:
        """The piece that ends a snapshot: the table is complete, and this is its cursor."""
        return SYNCED + self._cursor_piece(self.last)

    def append(self, entry: LogEntry) -> None:
        """Adds the newest entry; the oldest go when there are too many. The newest always stays."""
        self.last += 1
        self._entries[self.last] = entry
        self.bytes += entry.size
        self._made.clear()
        while len(self._entries) > 1 and (len(self._entries) > self._most_entries or self.bytes > self._most_bytes):
            self.bytes -= self._entries.pop(next(iter(self._entries))).size

    def number(self, cursor: str) -> int | None:
        """The entry that a cursor names, however long ago; None: of another epoch, or no cursor."""
        epoch, _, number = cursor.partition(":")
        if epoch != self.epoch or not (number.isascii() and number.isdecimal()) or len(number) > 18:
            return None
        return int(number) if int(number) <= self.last else None

    def position(self, cursor: str) -> int | None:
        """The position of this cursor; None: of another epoch, no cursor, or too long ago."""
        number = self.number(cursor)
        return number if number is not None and number >= self.last - len(self._entries) else None

    def since(self, position: int, *, staged: bool = False) -> LogMessage | None:
        """The next message for a watcher that is there, and not at the newest entry; None: it is too far behind.

        It is a step to a later table, not a replay: of several changes of one lease only the last is in it. It
        reaches as far as one message can, so that a slow watcher keeps no more than that in our memory. `staged`:
        without `synced` and cursor, for a watcher whose snapshot is not complete yet.
        """
        if position < self.last - len(self._entries):
            return None
        made = self._made.get((position, staged))
        if made is None:
            made = self._made[position, staged] = self._merged(position, staged)
        return made

    def _merged(self, position: int, staged: bool) -> LogMessage:
        latest: dict[str, bytes] = {}
        network = network_error = store = awaited = b""
        for entry in self._that_fit(position, latest):
            position += 1
            for name, piece in entry.changes:
                latest.pop(name, None)  # the order is that of the last changes
                latest[name] = piece
            if entry.network:
                network, network_error = entry.network, b""
            network_error = entry.network_error or network_error
            store = entry.store or store
            awaited = entry.awaited or awaited
        end = b"" if staged else SYNCED + self._cursor_piece(position)
        return LogMessage(b"".join([*latest.values(), network, network_error, store, awaited, end]), position)

    def _that_fit(self, position: int, latest: dict[str, bytes]) -> Iterator[LogEntry]:
        """The entries after a position, while what they add up to (`latest`) fits into a message; at least one."""
        size = 0
        for number in range(position + 1, self.last + 1):
            entry = self._entries[number]
            more = sum(name not in latest for name, _ in entry.changes)
            size += sum(len(piece) - len(latest.get(name, b"")) for name, piece in entry.changes)
            if latest and (len(latest) + more > MOST_CHANGES or size > MOST_BYTES):
                return
            yield entry

    def after(self, position: int) -> list[LogEntry] | None:
        """The entries after a position; None: it is too far behind."""
        if position < self.last - len(self._entries):
            return None
        return [self._entries[number] for number in range(position + 1, self.last + 1)]

    def _cursor_piece(self, position: int) -> bytes:
        return step_to_bytes(Step(cursor=f"{self.epoch}:{position}"))


_MOST_ENTRIES: Final = 20_000
_MOST_BYTES: Final = 16 << 20


class LeasesByNode:
    """The leases of each node of this cluster, by name. Leases without a node are those of the empty node."""

    def __init__(self) -> None:
        self._of_node: dict[str, dict[str, Lease]] = {}

    def of(self, node: str) -> Mapping[str, Lease]:
        """The leases that a node holds."""
        return self._of_node.get(node, {})

    @property
    def nodes(self) -> Set[str]:
        """The nodes that hold one."""
        return self._of_node.keys() - {""}

    def replace(self, before: Lease | None, after: Lease | None) -> None:
        """A lease changed from `before` to `after`; None: it is new, or gone."""
        if before is not None and not before.cluster:
            held = self._of_node[before.node]
            del held[before.name]
            if not held:
                del self._of_node[before.node]
        if after is not None and not after.cluster:
            self._of_node.setdefault(after.node, {})[after.name] = after


class Broker:
    """Keeps `table` equal to the store, and what watchers need (services/lease/watch.py) beside it.

    Each change is serialised once for all watchers. An event that changes nothing, such as a Snapshot after
    a reconnect that equals the table, wakes nobody. Everything runs in one event loop, and nothing but `has` waits.
    """

    def __init__(
        self,
        kind: str,
        *,
        epoch: str,
        connected_nodes: ConnectedNodes | None = None,
        journal: LeaseJournal | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        most_entries: int = _MOST_ENTRIES,
        most_bytes: int = _MOST_BYTES,
    ) -> None:
        self.foreign = Foreign()
        """What is imported from other clusters beside the leases of the store."""
        self.table = Table(store=StoreStatus(kind, False, f"the {kind} store has not answered yet"))
        self.change_log = ChangeLog(epoch, most_entries, most_bytes)
        self.leases_by_node = LeasesByNode()
        self.notifier = Notifier()
        self.reports = Reports(self.change_log, clock, timer)
        self.connected_nodes = connected_nodes or ConnectedNodes()
        self.connected_nodes.subscribe(self.reports)
        self.connected_nodes.wake = lambda: self.notifier.wake(None)
        self.journal = journal or LeaseJournal()
        self.connected_nodes.subscribe(NodeEvents(self.journal, self.connected_nodes.of))
        self.lost: Mapping[str, LostLease] = {}
        """Leases that the store has lost and the table keeps, by node."""
        self.overrides: Mapping[str, PublicIpOverrides] = NO_OVERRIDES
        """What operators have chosen, by node."""
        self.watchers = 0
        """Number of open streams."""
        self.followers = 0
        """Number of open streams of the whole table."""
        self.pieces = EncodedLeases(self.table.leases)
        """The leases of the table, serialised."""
        self._parts: dict[tuple[str | None, bool], SnapshotPart] = {}
        metrics.LEASES.set_function(lambda: len(self.table.leases))
        metrics.STORE_CONNECTED.labels(kind).set_function(lambda: self.store_status.connected)
        metrics.HISTORY_STEPS.set_function(lambda: len(self.change_log))
        metrics.HISTORY_BYTES.set_function(lambda: self.change_log.bytes)

    @property
    def own(self) -> Mapping[str, Lease]:
        """The table without what this process imports."""
        return OwnLeases(self.table.leases, self.foreign.leases) if self.foreign.leases else self.table.leases

    @property
    def store_status(self) -> StoreStatus:
        """Whether the store answers."""
        assert self.table.store is not None  # noqa: S101 - set from the start, and never cleared
        return self.table.store

    def take(self, event: StoreEvent) -> None:
        """Folds one event into the table, appends it to the log, and wakes the watchers that it concerns."""
        if not isinstance(event, StoreStatus):
            event = self.foreign.merged(event, self.table.leases)
        step = step_of(self.table, event)
        if step == NOTHING:
            return
        was_synced = self.table.synced
        names = {change.name for change in step.changes}
        before = {name: self.table.leases.get(name) for name in names}
        nodes = self._fold(step, before)
        self.foreign.own_leases = len(self.own)
        self.pieces.follow(names)
        self._parts.clear()
        if was_synced:  # before, nobody has a cursor
            for entry in self._entries(step):
                self.change_log.append(entry)
        if self.table.synced:
            self.reports.entered()
            self.journal.cursor = self.change_log.cursor
        self._tell(step, event, before if was_synced else {})
        self.notifier.wake(None if _concerns_all(step) else nodes)
        if admitted := self.foreign.admitted():
            self.take(Changed(admitted))

    def lose(self, lost: Mapping[str, LostLease]) -> None:
        """Replaces the lost leases, by node; the watch of each node whose entry changed is woken."""
        changed = {node for node, what in lost.items() if self.lost.get(node) != what}
        self.lost = lost
        if changed:
            self.notifier.wake(changed)

    def choose(self, overrides: Mapping[str, PublicIpOverrides]) -> None:
        """Replaces what operators have chosen, by node, and wakes the watches."""
        if overrides != self.overrides:
            self.overrides = overrides
            self.notifier.wake(())

    def snapshot(self, after: str | None, begun: int) -> SnapshotPart:
        """The next part of a snapshot: the leases after one, or the beginning (None). Made once for all who ask.

        It ends with `synced` if no lease is missing and nothing has changed since the snapshot began there.
        """
        has_changed = begun != self.change_log.last
        part = self._parts.get((after, has_changed))
        if part is None:
            leases = self.pieces.chunk(after or "")
            head = b"" if after is not None else self._head()
            end = self.change_log.end if leases.ends and not has_changed else b""
            part = self._parts[after, has_changed] = SnapshotPart(head + leases.body + end, leases.last, leases.ends)
        return part

    async def has(self, lease: Lease, within: float) -> bool:
        """Waits until the table shows what the lease publishes, at most `within` seconds; says whether it does."""
        try:
            async with asyncio.timeout(within):
                while (shown := self.table.leases.get(lease.name)) is None or shown.subnets != lease.subnets:
                    await self.notifier.next()
        except TimeoutError:
            return False
        return True

    def stop(self) -> None:
        """Ends every stream with Unavailable."""
        self.journal.is_stopping = True
        stopping = Unavailable("the lease service is stopping: reconnect with the last cursor")
        self.notifier.stop(stopping)
        self.reports.notifier.stop(stopping)

    def _head(self) -> bytes:
        table = self.table
        head = Step(
            network=table.network,
            network_error=table.network_error,
            store=table.store,
            awaited=table.awaited or None,
        )
        return RESET + step_to_bytes(head)

    def _entries(self, step: Step) -> Iterator[LogEntry]:
        """The step in parts, each no longer than a message; each is made now, as the change may be undone soon."""
        pieces: list[tuple[str, bytes]] = []
        size = 0
        for change in step.changes:
            name, piece = change.name, change_to_bytes(change)
            if isinstance(change, Upserted):
                self.pieces.keep(name, piece)
            size += len(piece)
            if pieces and (len(pieces) == MOST_CHANGES or size > MOST_BYTES):
                yield LogEntry(tuple(pieces))
                pieces, size = [], len(piece)
            pieces.append((name, piece))
        yield LogEntry(
            tuple(pieces),
            network=step_to_bytes(Step(network=step.network)) if step.network else b"",
            network_error=step_to_bytes(Step(network_error=step.network_error)) if step.network_error else b"",
            store=step_to_bytes(Step(store=step.store)) if step.store else b"",
            awaited=step_to_bytes(Step(awaited=step.awaited)) if step.awaited is not None else b"",
        )

    def _tell(self, step: Step, event: StoreEvent, before: Mapping[str, Lease | None]) -> None:
        """The journal hears of the step; of the first snapshot only how many leases it has."""
        leases, released = self.table.leases, event.released if isinstance(event, Changed) else frozenset()
        tell_step(self.journal, step, self.store_status.kind, len(leases))
        for name, lease in before.items():
            tell_lease(self.journal, lease, leases.get(name), is_released=name in released)

    def _fold(self, step: Step, before: Mapping[str, Lease | None]) -> set[str]:
        """Takes the table one step further; returns the nodes that hold or held a lease that changed."""
        leases = self.table.leases
        self.table.fold(step)
        nodes: set[str] = set()
        for name, old in before.items():
            new = leases.get(name)
            self.leases_by_node.replace(old, new)
            if old is not None:
                nodes.add(old.node)
            if new is not None:
                nodes.add(new.node)
        return nodes - {""}


def _concerns_all(step: Step) -> bool:
    return bool(step.network is not None or step.network_error or step.store is not None or step.synced)


PAUSE: Final = 0.002
"""Seconds between two changes that come apart. A message costs a dataplane as much as some ten changes in it."""
_PAUSE_OF_A_FOLLOWER: Final = 0.001
"""Seconds by which a follower lengthens the time between two changes: a message to it costs a tenth of them."""
_LONGEST_PAUSE: Final = 2.0
STALLED_SECONDS: Final = 28.0
"""Seconds that a client has to take a message: as many as one of which nothing is wanted has to answer a ping."""

M = TypeVar("M", bytes, Step)
"""A message of a stream: serialised, or for a reader in this process the step itself, with the table's own leases."""


def watch_all(
    broker: Broker,
    cursor: str,
    dataplane_of: str = "",
    *,
    machine: str = "",
    is_relay: bool = False,
    pause: float = 0.0,
) -> AsyncGenerator[bytes, None]:
    """VIEW_ALL, serialised; the guarantees are those of WatchLeases in lease.proto.

    A watcher that reads slowly costs its position and the one message that is being sent: it gets the difference
    between its table and the newest one, or a reset when the log does not reach back to it.

    A change is sent at once, unless the last one was less than `pause` seconds ago: changes within that time are
    sent together, in as many messages as they take. With many followers the time is longer, up to two seconds, so
    that changes all the time leave most of a core to those who acquire a lease.

    `dataplane_of` is the node that is connected while this stream lives, once the table is known; empty: the watcher
    is no dataplane. Raises NameTaken as soon as another machine than `machine` is known to have the node's name.
    The stream has what operators have chosen for this node; that of a relay (`is_relay`), for every node.
    """
    begin = partial(StreamPosition, broker, cursor)
    return _followed(broker, begin, step_to_bytes, dataplane_of, machine, is_relay=is_relay, pause=pause)


def follow_all(broker: Broker, cursor: str, dataplane_of: str, machine: str) -> AsyncGenerator[Step, None]:
    """VIEW_ALL for a dataplane in this process: the same without a wire, and the leases are those of the table."""
    return _followed(broker, partial(SharedPosition, broker, cursor), _itself, dataplane_of, machine, pause=PAUSE)


def _itself(step: Step) -> Step:
    return step


async def _followed(
    broker: Broker,
    begin: "Callable[[], Position[M]]",
    encode: Callable[[Step], M],
    dataplane_of: str,
    machine: str,
    *,
    is_relay: bool = False,
    pause: float = 0.0,
) -> AsyncGenerator[M, None]:
    with _counted(broker, is_follower=True), ExitStack() as admitted:
        async for step in _until_synced(broker):
            yield encode(step)
        stream = admitted.enter_context(broker.connected_nodes.stream(dataplane_of, machine))
        position, told = begin(), None
        known, chosen = broker.overrides, _concerning(broker.overrides, dataplane_of, is_relay=is_relay)
        if dataplane_of or is_relay:
            yield encode(Step(overrides=NodeOverrides(chosen, complete=True)))
        if position.is_resumed:
            yield encode(Step(synced=True, cursor=position.cursor))  # a bookmark: you are connected
        now, due = asyncio.get_running_loop().time, 0.0
        while True:
            stream.require_name()
            if position.is_behind:
                if (rest := due - now()) > 0:
                    await asyncio.sleep(rest)
                due = now() + (pause and max(pause, min(broker.followers * _PAUSE_OF_A_FOLLOWER, _LONGEST_PAUSE)))
            if (following := position.next_message()) is not None:
                if position.is_behind:
                    due = 0.0  # the message is full, and nothing is won by waiting
                yield following
            elif told != (lost := broker.lost.get(dataplane_of)):
                told = lost
                if lost:
                    yield encode(Step(lost=lost.name))
            elif known is not broker.overrides:
                before, known = chosen, broker.overrides
                chosen = _concerning(known, dataplane_of, is_relay=is_relay)
                if changed := overrides_between(before, chosen):
                    yield encode(Step(overrides=changed))
            else:
                await broker.notifier.next()


def _concerning(
    overrides: Mapping[str, PublicIpOverrides], node: str, *, is_relay: bool
) -> Mapping[str, PublicIpOverrides]:
    """The overrides that a watcher gets."""
    return overrides if is_relay else {node: overrides[node]} if node in overrides else NO_OVERRIDES


async def watch_own(
    broker: Broker, node: str, *, is_dataplane: bool = False, machine: str = ""
) -> AsyncGenerator[bytes, None]:
    """VIEW_OWN, serialised: see `follow_own`."""
    async with aclosing(follow_own(broker, node, is_dataplane=is_dataplane, machine=machine)) as steps:
        async for step in steps:
            yield _noted(step_to_bytes(step)) if step.synced else step_to_bytes(step)


async def follow_own(
    broker: Broker, node: str, *, is_dataplane: bool = False, machine: str = ""
) -> AsyncGenerator[Step, None]:
    """VIEW_OWN; wakes only for the leases of the node, the network and the store.

    It keeps no position in the log but compares what it has shown with what is. So every stream starts with a reset,
    whatever the cursor: a lease and the network are less than a record of what was missed.

    `is_dataplane`: the node is connected while this stream lives, as that of `watch_all`; a relay says so for those
    behind it.
    """
    with _counted(broker), ExitStack() as admitted:
        async for step in _until_synced(broker):
            yield step
        stream = admitted.enter_context(broker.connected_nodes.stream(node if is_dataplane else "", machine))
        _count_reset("own_view")
        shown, told = Table(), None
        while True:
            stream.require_name()
            step = _own_step(broker, shown, node)
            if step != NOTHING:
                shown.fold(step)
                yield step
            elif is_dataplane and told != (lost := broker.lost.get(node)):
                told = lost
                if lost:
                    yield Step(lost=lost.name)
            else:
                await broker.notifier.next(node)


def _noted(message: bytes) -> bytes:
    metrics.MESSAGES.inc()
    metrics.MESSAGE_BYTES.inc(len(message))
    return message


async def _until_synced(broker: Broker) -> AsyncIterator[Step]:
    """Yields steps until the first complete snapshot: only the state of the store, and what is wrong with the
    network.
    """
    shown: tuple[StoreStatus, str] | None = None
    while not broker.table.synced:
        status = (broker.store_status, broker.table.network_error)
        if status == shown:
            await broker.notifier.next()
        else:
            shown = status
            yield Step(store=status[0], network_error=status[1])


def _own_step(broker: Broker, shown: Table, node: str) -> Step:
    """What takes an own view from what it shows to the table as it is. A lease that changed hands is removed."""
    table = broker.table
    is_new = (table.network, table.network_error) != (shown.network, shown.network_error)
    step = Step(
        reset=not shown.synced,
        changes=changes_between(shown.leases, broker.leases_by_node.of(node)),
        network=table.network if is_new else None,
        network_error=table.network_error if is_new else "",
        store=table.store if table.store != shown.store else None,
    )
    return step if step == NOTHING else replace(step, synced=True, cursor=broker.change_log.cursor)


@contextmanager
def _counted(broker: Broker, *, is_follower: bool = False) -> Iterator[None]:
    broker.watchers += 1
    broker.followers += is_follower
    metrics.WATCHERS.set(broker.watchers)
    try:
        yield
    finally:
        broker.watchers -= 1
        broker.followers -= is_follower
        metrics.WATCHERS.set(broker.watchers)


class Position(ABC, Generic[M]):
    """What a VIEW_ALL watcher has, and what it gets next: a snapshot, if it needs one, then the changes. No IO."""

    def __init__(self, broker: Broker, cursor: str) -> None:
        self.cursor = cursor
        """The cursor where it began."""
        self._broker = broker
        self._position = broker.change_log.position(cursor)
        """The entry of the history up to which it has everything; None: it needs a snapshot."""
        if self._position is None:
            ours = cursor.startswith(f"{broker.change_log.epoch}:")
            _count_reset("compacted" if ours else "other_epoch" if cursor else "no_cursor")

    @property
    def is_resumed(self) -> bool:
        """Whether the cursor was one to go on from."""
        return self._position is not None

    @property
    def is_behind(self) -> bool:
        """Whether a change waits that is no part of a snapshot."""
        return self._position not in (None, self._broker.change_log.last)

    @abstractmethod
    def next_message(self) -> M | None:
        """What to send next; None: it has everything."""


class SharedPosition(Position[Step]):
    """The position of a watcher in this process: one step always takes it to the table as it is."""

    def next_message(self) -> Step | None:
        """See Position."""
        table, change_log = self._broker.table, self._broker.change_log
        if self._position == change_log.last:
            return None
        entries = None if self._position is None else change_log.after(self._position)
        if entries is None and self._position is not None:
            _count_reset("too_slow")
        self._position = change_log.last
        if entries is None:
            return Step(
                reset=True,
                changes=tuple(map(Upserted, table.leases.values())),
                network=table.network,
                network_error=table.network_error,
                store=table.store,
                synced=True,
                cursor=change_log.cursor,
                awaited=table.awaited or None,
            )
        names: dict[str, None] = {}
        for name in (name for entry in entries for name, _ in entry.changes):
            names.pop(name, None)  # the order is that of the last changes
            names[name] = None
        leases = ((name, table.leases.get(name)) for name in names)
        is_network = any(entry.network or entry.network_error for entry in entries)
        return Step(
            changes=tuple(Upserted(lease) if lease else Removed(name) for name, lease in leases),
            network=table.network if is_network else None,
            network_error=table.network_error if is_network else "",
            store=table.store if any(entry.store for entry in entries) else None,
            synced=True,
            cursor=change_log.cursor,
            awaited=table.awaited if any(entry.awaited for entry in entries) else None,
        )


class StreamPosition(Position[bytes]):
    """The position of a watcher behind gRPC, whose messages are limited and made once for all watchers.

    It keeps a number and a name, no matter how far behind it is. A snapshot is taken from the table as it is when
    each message is made; before it is complete, what has changed since its first message is sent after it. So it ends
    at one moment of the table, that of its cursor, and a table that changes all the time holds no snapshot up.
    """

    def __init__(self, broker: Broker, cursor: str) -> None:
        super().__init__(broker, cursor)
        self._after: str | None = None
        """While the leases of a snapshot are sent: the last one; None before and after."""
        self._staged = False
        """The snapshot that has begun is not complete yet."""

    @property
    def is_behind(self) -> bool:
        """See Position."""
        return super().is_behind and self._after is None and not self._staged

    def next_message(self) -> bytes | None:
        """See Position; the same bytes for all watchers at the same position."""
        message = self._next()
        return None if message is None else _noted(message)

    def _next(self) -> bytes | None:
        change_log = self._broker.change_log
        if self._position is None:
            self._position = change_log.last
            return self._part_of_snapshot(self._position)
        if self._after is not None:
            return self._part_of_snapshot(self._position)
        if self._position == change_log.last:
            return None
        update = change_log.since(self._position)
        if update is not None and self._staged and update.position != change_log.last:
            update = change_log.since(self._position, staged=True)
        if update is None:
            _count_reset("too_slow")
            self._position = None
            return self._next()
        self._position = update.position
        self._staged = self._staged and update.position != change_log.last
        return update.message

    def _part_of_snapshot(self, begun: int) -> bytes:
        part = self._broker.snapshot(self._after, begun)
        self._after = None if part.ends else part.last
        self._staged = not part.ends or begun != self._broker.change_log.last
        return part.body


async def end_if_stalled(messages: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """The same messages; cancels the task that sends them when one message does not get away for 28 s.

    gRPC's ping waits behind the messages in the socket's buffer. Where a frozen process has let that buffer fill, the
    ping is never sent, and so never fails.
    """
    task, loop = asyncio.current_task(), asyncio.get_running_loop()
    assert task is not None  # noqa: S101 - only a task can ask for a message
    since: float | None = None
    timer: asyncio.TimerHandle | None = None

    def check() -> None:
        nonlocal timer
        timer = None
        if since is not None:
            if (rest := since + STALLED_SECONDS - loop.time()) > 0:
                timer = loop.call_later(rest, check)
            else:
                task.cancel()

    try:
        async with aclosing(messages):
            async for message in messages:
                since = loop.time()
                timer = timer or loop.call_later(STALLED_SECONDS, check)  # one for many messages: it costs 3 us
                yield message
                since = None
    finally:
        if timer is not None:
            timer.cancel()


def _count_reset(reason: str) -> None:
    metrics.RESETS.labels(reason).inc()
