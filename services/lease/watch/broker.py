"""The broker: keeps the lease table equal to the store, and wakes the watchers that a change concerns."""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import NO_OVERRIDES, PublicIpOverrides, Step, StoreStatus, Table, Upserted
from flannelette.services.lease import metrics
from flannelette.services.lease.events import LeaseJournal, NodeEvents, tell_lease, tell_step
from flannelette.services.lease.imports.foreign import Foreign, OwnLeases
from flannelette.services.lease.progress.connected import ConnectedNodes
from flannelette.services.lease.progress.notifier import Notifier
from flannelette.services.lease.progress.reports import Reports
from flannelette.services.lease.stores.store import Changed, LostLease, StoreEvent
from flannelette.services.lease.watch import steps
from flannelette.services.lease.watch.log import ChangeLog, LogEntry
from flannelette.services.lease.watch.steps import NOTHING, RESET, EncodedLeases, SnapshotPart, step_of
from flannelette.services.runtime.lease.wire import change_to_bytes, step_to_bytes

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
    """Keeps `table` equal to the store, and what watchers need (services/lease/watch/streams.py) beside it.

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
            if pieces and (len(pieces) == steps.MOST_CHANGES or size > steps.MOST_BYTES):
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
