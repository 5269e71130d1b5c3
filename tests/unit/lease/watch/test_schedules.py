"""Watchers of any script of events, slow readers and reconnects: each ends with the table."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Table, Upserted
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease import watch
from flannelette.services.lease.stores.store import Changed, Snapshot, StoreEvent
from flannelette.services.lease.watch import Broker, follow_all, follow_own, watch_all, watch_own
from tests.examples.leases import NETWORK, SMALL, by_name, make_lease, read

NODES = ("node0", "node1", "node2")
some_leases = st.builds(make_lease, st.integers(0, 12), node=st.sampled_from([*NODES, ""]), version=st.integers(0, 2))
some_changes = st.one_of(st.builds(Upserted, some_leases), st.builds(Removed, some_leases.map(lambda x: x.name)))
networks = st.sampled_from([(None, "bad"), (None, "worse"), (NETWORK, ""), (SMALL, "")])


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    network, error = draw(networks)
    return Snapshot(by_name(*draw(st.lists(some_leases, max_size=10))), network, error)


@st.composite
def changed(draw: st.DrawFn) -> Changed:
    network, error = draw(st.just((None, "")) | networks)
    return Changed(tuple(draw(st.lists(some_changes, max_size=6))), network, error)


statuses = st.builds(StoreStatus, st.just("test"), st.booleans())
events = st.one_of(changed(), changed(), changed(), snapshots(), statuses)


@dataclass(frozen=True)
class Read:
    """A watcher reads a few messages, if there are so many."""

    who: int
    messages: int


@dataclass(frozen=True)
class Reconnect:
    """A watcher comes back with its cursor."""

    who: int


actions = st.one_of(
    events, events, st.builds(Read, st.integers(0, 5), st.integers(1, 4)), st.builds(Reconnect, st.integers(0, 3))
)


@dataclass
class Past:
    """What the broker's table was at each cursor."""

    leases: dict[str, dict[str, Lease]] = field(default_factory=dict)
    networks: dict[str, tuple[NetworkConfig | None, str]] = field(default_factory=dict)

    def note(self, broker: Broker) -> None:
        cursor = broker.change_log.cursor
        self.leases[cursor] = dict(broker.table.leases)
        self.networks[cursor] = (broker.table.network, broker.table.network_error)


class Watcher:
    """A client of one view; checks the guarantees of the stream at every message."""

    def __init__(self, broker: Broker, past: Past, node: str = "", *, is_here: bool = False) -> None:
        self.table = Table()
        self._is_here = is_here
        """In this process: its steps are not serialised, and may be of any size."""
        self._broker = broker
        self._past = past
        self._node = node
        self._next: asyncio.Task[bytes | Step] | None = None
        self._staged = False
        self._stream = self._open()

    async def read(self, most: int) -> int:
        """Folds as many messages as are there, at most so many; returns how many."""
        for count in range(most):
            if self._next is None:
                self._next = asyncio.create_task(anext(self._stream))  # type: ignore[arg-type]  # an async generator
            for _ in range(3):
                await asyncio.sleep(0)
            if not self._next.done():
                return count
            message, self._next = self._next.result(), None
            self._fold(message if isinstance(message, Step) else read(message))
        return most

    async def reconnect(self) -> None:
        await self.close()
        self._stream = self._open()

    async def close(self) -> None:
        if self._next is not None:
            self._next.cancel()
            with suppress(asyncio.CancelledError, StopAsyncIteration):
                await self._next
            self._next = None
        await self._stream.aclose()  # type: ignore[attr-defined]  # an async generator
        self._staged = False

    def expected(self, leases: Mapping[str, Lease]) -> dict[str, Lease]:
        return {name: lease for name, lease in leases.items() if not self._node or lease.node == self._node}

    def _open(self) -> AsyncIterator[bytes | Step]:
        if self._node:
            return (follow_own if self._is_here else watch_own)(self._broker, self._node)
        cursor = self.table.cursor if self.table.synced else ""
        return follow_all(self._broker, cursor, "", "") if self._is_here else watch_all(self._broker, cursor)

    def _fold(self, step: Step) -> None:
        before = set(self.table.leases)
        assert len(step.changes) <= watch.MOST_CHANGES or self._node or self._is_here
        self._staged = self._staged or step.reset
        if step.reset:
            assert step.network or step.network_error
        if not (self.table.synced or self._staged):
            assert not step.changes
            assert not step.network
            assert not step.synced
        elif not self._staged:
            assert step.synced
        self.table.fold(step)
        if self._staged and not step.synced:
            assert before <= set(self.table.leases), "nothing is removed before synced"
        if step.synced:
            self._staged = False
        assert step.synced or not step.cursor
        if step.cursor in self._past.leases:  # one within a large step was never the broker's
            assert self.table.leases == self.expected(self._past.leases[step.cursor])
            assert (self.table.network, self.table.network_error) == self._past.networks[step.cursor]


async def _play(script: list[StoreEvent | Read | Reconnect], most_entries: int) -> None:
    broker, past = Broker("test", epoch="e", most_entries=most_entries), Past()
    crowd = [
        Watcher(broker, past),
        Watcher(broker, past),
        Watcher(broker, past, "node0"),
        Watcher(broker, past, "node1"),
        Watcher(broker, past, is_here=True),
        Watcher(broker, past, "node1", is_here=True),
    ]
    for action in script:
        match action:
            case Read(who, messages):
                await crowd[who].read(messages)
            case Reconnect(who):
                await crowd[who].reconnect()
            case _:
                broker.take(action)
                past.note(broker)
    for watcher in crowd:
        while await watcher.read(10):
            pass
        if broker.table.synced:
            assert watcher.table.synced
            assert watcher.table.leases == watcher.expected(broker.table.leases)
            assert watcher.table.network == broker.table.network
            assert watcher.table.network_error == broker.table.network_error
        assert watcher.table.store == broker.table.store
    assert broker.watchers == len(crowd)
    for watcher in crowd:
        await watcher.close()
    assert broker.watchers == 0


@given(st.lists(actions, max_size=40), st.integers(1, 6), st.sampled_from([1, 3, 500]))
def test_every_watcher_ends_with_the_table_and_never_removes_early(
    script: list[StoreEvent | Read | Reconnect], most_entries: int, most_changes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch, "MOST_CHANGES", most_changes)
        asyncio.run(_play(script, most_entries))
