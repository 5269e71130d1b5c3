"""Every watcher ends up with the broker's table, however slowly it reads and however often it reconnects."""

import asyncio

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.node_overrides import NodeOverrides, PublicIpOverride
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Upserted
from flannelette.services.lease.stores.store import Changed, Snapshot
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.lease.watch.streams import watch_all, watch_own
from tests.examples.leases import NETWORK, SMALL, by_name, make_lease, read
from tests.stores.broker import broker_with, settle

A, B = make_lease(1), make_lease(2)
CHOSEN = (PublicIpOverride(4, "192.168.0.7", "a note"),)
OTHER = (PublicIpOverride(6, "fd00::7", "a note"),)


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


async def test_a_dataplane_is_told_first_and_ever_after_what_is_chosen_for_its_node() -> None:
    broker = broker_with(A)
    broker.choose({"node1": CHOSEN, "node2": OTHER})
    for cursor, second in (("", Step(reset=True)), ("e:0", Step())):
        stream = watch_all(broker, cursor, "node1")
        assert read(await anext(stream)) == Step(overrides=NodeOverrides({"node1": CHOSEN}, complete=True))
        assert read(await anext(stream)).reset == second.reset
        waiting = asyncio.ensure_future(anext(stream))
        broker.choose({"node1": CHOSEN})
        await settle()
        assert not waiting.done(), "it is another node's"
        broker.choose({"node1": OTHER})
        assert read(await waiting) == Step(overrides=NodeOverrides({"node1": OTHER}))
        broker.choose({})
        assert read(await anext(stream)) == Step(overrides=NodeOverrides({"node1": ()}))
        broker.choose({"node1": CHOSEN, "node2": OTHER})


async def test_a_dataplane_for_which_nothing_is_chosen_is_told_that() -> None:
    stream = watch_all(broker_with(A), "", "node1")
    assert read(await anext(stream)) == Step(overrides=NodeOverrides({}, complete=True))
    unsynced = Broker("test", epoch="e")
    unsynced.choose({"node1": CHOSEN})
    assert read(await anext(watch_all(unsynced, "", "node1"))).overrides is None, "it is not known yet"


async def test_a_relay_is_told_what_is_chosen_for_every_node_and_who_only_looks_nothing() -> None:
    broker = broker_with(A)
    broker.choose({"node1": CHOSEN, "node2": OTHER})
    relay, looker, own = watch_all(broker, "", is_relay=True), watch_all(broker, ""), watch_own(broker, "node1")
    assert read(await anext(relay)) == Step(overrides=NodeOverrides({"node1": CHOSEN, "node2": OTHER}, complete=True))
    for stream in (relay, looker, own):
        assert read(await anext(stream)).reset
    broker.choose({"node2": CHOSEN})
    assert read(await anext(relay)) == Step(overrides=NodeOverrides({"node1": (), "node2": CHOSEN}))
    for stream in (looker, own):
        waiting = asyncio.ensure_future(anext(stream))
        await settle()
        assert not waiting.done()
        waiting.cancel()


async def test_a_change_elsewhere_is_not_told_to_the_own_view() -> None:
    broker = broker_with(A, B)
    stream = watch_own(broker, "node1")
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await settle()
    for version in range(100):
        broker.take(Changed((Upserted(make_lease(2, version=version)),)))
        await asyncio.sleep(0)
    assert not waiting.done()
    broker.take(Changed((Removed(A.name),)))
    assert read(await waiting).changes == (Removed(A.name),)


async def test_a_lease_that_nobody_holds_wakes_nobody_who_waits_for_what_concerns_all() -> None:
    broker = broker_with(A)
    waiting = asyncio.ensure_future(broker.notifier.next(""))
    await settle()
    broker.take(Changed((Upserted(make_lease(2, node="")), Upserted(make_lease(1, node="")))))
    await settle()
    assert not waiting.done()
    broker.take(StoreStatus("test", False, "away"))
    await asyncio.wait_for(waiting, 5)


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
    assert broker.leases_by_node.of("node1") == by_name(moved, A)
    assert broker.leases_by_node.of("node2") == {}
    broker.take(Snapshot({}, NETWORK))
    assert broker.leases_by_node.of("node1") == {}
