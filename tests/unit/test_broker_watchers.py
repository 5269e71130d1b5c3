"""Every watcher ends up with the broker's table, however slowly it reads and however often it reconnects."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.core.errors import Unavailable
from services.core.lease import Lease, OpaqueData
from services.core.network import NetworkConfig
from services.core.table import Removed, Step, StoreStatus, Table, Upserted
from services.lease import encoding, watchers
from services.lease.broker import Broker
from services.lease.store import Changed, Snapshot, StoreEvent
from services.lease.watchers import watch_all, watch_own
from tests.lease_examples import NETWORK, SMALL, by_name, make_lease, read

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
    events, events, st.builds(Read, st.integers(0, 3), st.integers(1, 4)), st.builds(Reconnect, st.integers(0, 3))
)


@dataclass
class History:
    """What the broker's table was at each cursor."""

    leases: dict[str, dict[str, Lease]] = field(default_factory=dict)
    networks: dict[str, tuple[NetworkConfig | None, str]] = field(default_factory=dict)

    def note(self, broker: Broker) -> None:
        cursor = broker.history.cursor
        self.leases[cursor] = dict(broker.table.leases)
        self.networks[cursor] = (broker.table.network, broker.table.network_error)


class Watcher:
    """A client of one view; checks the guarantees of the stream at every message."""

    def __init__(self, broker: Broker, past: History, node: str = "") -> None:
        self.table = Table()
        self._broker = broker
        self._past = past
        self._node = node
        self._next: asyncio.Task[bytes] | None = None
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
            self._fold(read(message))
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

    def _open(self) -> AsyncIterator[bytes]:
        if self._node:
            return watch_own(self._broker, self._node)
        return watch_all(self._broker, self.table.cursor if self.table.synced else "")

    def _fold(self, step: Step) -> None:
        before = set(self.table.leases)
        assert len(step.changes) <= encoding.MOST_CHANGES or self._node
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
    broker, past = Broker("test", epoch="e", most_entries=most_entries), History()
    crowd = [
        Watcher(broker, past),
        Watcher(broker, past),
        Watcher(broker, past, "node0"),
        Watcher(broker, past, "node1"),
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
        patch.setattr(encoding, "MOST_CHANGES", most_changes)
        asyncio.run(_play(script, most_entries))


A, B = make_lease(1), make_lease(2)


def broker_with(*leases: Lease, most_entries: int = 100) -> Broker:
    broker = Broker("test", epoch="e", most_entries=most_entries)
    broker.take(StoreStatus("test", True))
    broker.take(Snapshot(by_name(*leases), NETWORK))
    return broker


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_the_first_message_is_a_whole_small_table() -> None:
    stream = watch_all(broker_with(A, B), "")
    step = read(await anext(stream))
    assert step == Step(
        reset=True,
        changes=(Upserted(A), Upserted(B)),
        network=NETWORK,
        store=StoreStatus("test", True),
        synced=True,
        cursor="e:0",
    )


async def test_no_leases_are_said_by_a_reset_that_is_synced() -> None:
    step = read(await anext(watch_all(broker_with(), "")))
    assert (step.reset, step.changes, step.synced) == (True, (), True)


async def test_a_cursor_that_resumes_brings_only_what_was_missed() -> None:
    broker = broker_with(A)
    broker.take(Changed((Upserted(B),)))
    stream = watch_all(broker, "e:0")
    assert read(await anext(stream)) == Step(synced=True, cursor="e:0")
    assert read(await anext(stream)) == Step(changes=(Upserted(B),), synced=True, cursor="e:1")


async def test_a_watcher_with_everything_gets_a_bookmark_and_then_waits() -> None:
    stream = watch_all(broker_with(A), "e:0")
    assert read(await anext(stream)) == Step(synced=True, cursor="e:0")
    waiting = asyncio.ensure_future(anext(stream))
    await settle()
    assert not waiting.done()
    waiting.cancel()


@pytest.mark.parametrize("cursor", ["other:1", "nonsense", "e:77", "e:0"])
async def test_a_cursor_that_cannot_resume_is_answered_with_a_reset(cursor: str) -> None:
    broker = broker_with(A, most_entries=1)
    for version in range(1, 4):
        broker.take(Changed((Upserted(make_lease(1, version=version)),)))
    assert read(await anext(watch_all(broker, cursor))).reset


async def test_a_watcher_that_falls_off_the_history_gets_a_reset() -> None:
    broker = broker_with(A, most_entries=2)
    stream = watch_all(broker, "")
    await anext(stream)
    for version in range(1, 10):
        broker.take(Changed((Upserted(make_lease(1, version=version)),)))
    step = read(await anext(stream))
    assert step.reset
    assert step.changes == (Upserted(make_lease(1, version=9)),)


async def test_all_watchers_get_the_same_bytes() -> None:
    broker = broker_with(A)
    streams = [watch_all(broker, "") for _ in range(3)]
    first = [await anext(stream) for stream in streams]
    broker.take(Changed((Upserted(B),)))
    second = [await anext(stream) for stream in streams]
    for messages in (first, second):
        assert all(message is messages[0] for message in messages)


async def test_before_the_first_snapshot_only_the_trouble_is_told() -> None:
    broker = Broker("test", epoch="e")
    for stream in (watch_all(broker, ""), watch_own(broker, "node1")):
        step = read(await anext(stream))
        assert step == Step(store=StoreStatus("test", False, "the test store has not answered yet"))
    broker.take(StoreStatus("test", False, "connection refused"))
    broker.take(Changed(network=NETWORK))
    broker.take(Changed(network_error="bad"))
    step = read(await anext(watch_all(broker, "e:0")))
    assert step == Step(store=StoreStatus("test", False, "connection refused"), network_error="bad")


async def test_the_own_view_shows_the_own_lease_only() -> None:
    broker = broker_with(A, B)
    stream = watch_own(broker, "node1")
    first = read(await anext(stream))
    assert (first.reset, first.changes, first.network, first.synced) == (True, (Upserted(A),), NETWORK, True)
    broker.take(Changed((Upserted(make_lease(1, node="node2")),)))
    assert read(await anext(stream)).changes == (Removed(A.name),), "it is not ours any more"
    broker.take(Changed((Upserted(make_lease(1, node="node1", version=1)),)))
    assert read(await anext(stream)).changes == (Upserted(make_lease(1, node="node1", version=1)),)
    broker.take(Changed(network=SMALL))
    assert read(await anext(stream)).network == SMALL
    broker.take(StoreStatus("test", False, "away"))
    assert read(await anext(stream)).store == StoreStatus("test", False, "away")


async def test_a_change_elsewhere_does_not_wake_the_own_view(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = broker_with(A, B)
    stream = watch_own(broker, "node1")
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await settle()
    looks = 0
    look = watchers._own_step

    def counted(broker: Broker, shown: Table, node: str) -> Step:
        nonlocal looks
        looks += 1
        return look(broker, shown, node)

    monkeypatch.setattr(watchers, "_own_step", counted)
    for version in range(100):
        broker.take(Changed((Upserted(make_lease(2, version=version)),)))
        await asyncio.sleep(0)
    assert (looks, waiting.done()) == (0, False)
    broker.take(Changed((Removed(A.name),)))
    assert read(await waiting).changes == (Removed(A.name),)


async def test_stopping_ends_every_stream_with_unavailable() -> None:
    broker, unsynced = broker_with(A), Broker("test", epoch="e")
    streams = [watch_all(broker, ""), watch_own(broker, "node1"), watch_all(unsynced, "")]
    for stream in streams:
        await anext(stream)
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await settle()
    broker.stop()
    unsynced.stop()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, Unavailable)
    late = watch_all(broker, "")
    await anext(late)
    with pytest.raises(Unavailable, match="reconnect"):
        await anext(late)


async def test_a_snapshot_in_many_messages_is_of_the_moment_of_its_cursor() -> None:
    leases = [make_lease(number) for number in range(1200)]
    first, *_, last = sorted(leases, key=lambda lease: lease.name)
    broker = broker_with(*leases)
    stream = watch_all(broker, "")
    table = Table()
    table.fold(read(await anext(stream)))
    moved = replace(last, name="10.0.0.0-25")  # the subnet of a lease that was not sent yet, under a name that was
    broker.take(Changed((Removed(first.name), Removed(last.name), Upserted(moved))))
    while not table.synced:
        table.fold(read(await anext(stream)))
    assert table.leases == broker.table.leases
    assert table.cursor == "e:1"


async def test_a_snapshot_has_messages_of_at_most_500_changes_and_64_kib() -> None:
    opaque = OpaqueData('"' + "x" * 80_000 + '"')
    long = replace(make_lease(1), subnets=(replace(make_lease(1).subnets[0], data=opaque),))
    broker = broker_with(long, *(make_lease(number) for number in range(2, 1200)))
    stream = watch_all(broker, "")
    table, messages = Table(), []
    while not table.synced:
        messages.append(await anext(stream))
        table.fold(read(messages[-1]))
    assert table.leases == broker.table.leases
    assert all(len(read(message).changes) <= 500 for message in messages)
    (lonely,) = (message for message in messages if len(message) > 1.1 * (1 << 16))
    assert len(read(lonely).changes) == 1


async def test_a_burst_larger_than_a_message_comes_in_several_that_can_be_resumed() -> None:
    broker = broker_with()
    stream, table = watch_all(broker, ""), Table()
    table.fold(read(await anext(stream)))
    broker.take(Changed(tuple(Upserted(make_lease(number)) for number in range(1200))))
    table.fold(read(await anext(stream)))
    assert 0 < len(table.leases) <= 500
    resumed = watch_all(broker, table.cursor)
    while len(table.leases) < 1200:
        step = read(await anext(resumed))
        assert not step.reset
        table.fold(step)
    assert table.cursor == broker.history.cursor


async def test_has_waits_for_the_lease_to_be_shown() -> None:
    broker = broker_with()
    waiting = asyncio.ensure_future(broker.has(A, 60))
    await settle()
    broker.take(Changed((Upserted(make_lease(1, version=3)),)))
    await settle()
    assert not waiting.done()
    broker.take(Changed((Upserted(A),)))
    assert await waiting
    assert await broker.has(A, 0)
    assert not await broker.has(B, 0)


def test_the_leases_of_a_node_follow_the_table() -> None:
    broker = broker_with(A, B)
    moved = make_lease(2, node="node1")
    broker.take(Changed((Upserted(moved), Removed(A.name), Upserted(A))))
    assert broker.holdings.of("node1") == by_name(moved, A)
    assert broker.holdings.of("node2") == {}
    broker.take(Snapshot({}, NETWORK))
    assert broker.holdings.of("node1") == {}
