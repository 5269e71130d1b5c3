"""What goes into one message of a watcher of all leases, and what is told together."""

import asyncio
from dataclasses import replace

import pytest

from flannelette.services.core.leases.lease import OpaqueData
from flannelette.services.core.leases.table import Removed, Step, Table, Upserted
from flannelette.services.lease.stores.store import Changed
from flannelette.services.lease.watch.streams import PAUSE, watch_all, watch_own
from tests.examples.leases import make_lease, read
from tests.stores.broker import broker_with, settle
from tests.virtual_time import now, run_virtually

A, B = make_lease(1), make_lease(2)


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
    opaque = OpaqueData('"' + "x" * 8_000 + '"')
    long = (replace(lease, subnets=(replace(lease.subnets[0], data=opaque),)) for lease in map(make_lease, range(20)))
    broker = broker_with(*long, *(make_lease(number) for number in range(20, 1200)))
    stream = watch_all(broker, "")
    table, messages = Table(), []
    while not table.synced:
        messages.append(await anext(stream))
        table.fold(read(messages[-1]))
    assert table.leases == broker.table.leases
    assert all(len(read(message).changes) <= 500 for message in messages)
    assert all(len(message) <= 1.1 * (1 << 16) for message in messages)


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
    assert table.cursor == broker.change_log.cursor


async def test_what_follows_a_change_within_the_pause_comes_together_and_the_first_one_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sleep, over = asyncio.sleep, asyncio.Event()
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: over.wait() if seconds else sleep(0))
    broker = broker_with()
    stream = watch_all(broker, "", pause=3600)
    await anext(stream)
    broker.take(Changed((Upserted(A),)))
    waiting = asyncio.ensure_future(anext(stream))
    await settle()
    assert waiting.done()
    assert read(waiting.result()).changes == (Upserted(A),)
    waiting = asyncio.ensure_future(anext(stream))
    broker.take(Changed((Upserted(B),)))
    await settle()
    assert not waiting.done()
    broker.take(Changed((Removed(A.name),)))
    over.set()
    assert read(await waiting) == Step(changes=(Upserted(B), Removed(A.name)), synced=True, cursor="e:3")
    await stream.aclose()


def test_between_the_messages_of_one_catch_up_is_no_pause_and_after_the_last_one_is() -> None:
    async def main() -> list[float]:
        broker, came = broker_with(), list[float]()
        stream = watch_all(broker, "", pause=60)
        await anext(stream)
        broker.take(Changed(tuple(Upserted(make_lease(number)) for number in range(1200))))
        while read(await anext(stream)).cursor != broker.change_log.cursor:
            came.append(now())
        broker.take(Changed((Upserted(make_lease(1, version=1)),)))
        await anext(stream)
        return [*came, now()]

    assert run_virtually(main()) == [0, 0, 60]


@pytest.mark.parametrize(("watchers", "pause"), [(1, 0.002), (2, 0.002), (600, 0.6), (2_000, 2.0), (60_000, 2.0)])
def test_changes_all_the_time_are_sent_together_for_longer_the_more_watchers_there_are(
    watchers: int, pause: float
) -> None:
    async def main() -> list[float]:
        broker, came = broker_with(), list[float]()
        stream = watch_all(broker, "", pause=PAUSE)
        await anext(stream)
        broker.followers = watchers
        for version in range(3):
            broker.take(Changed((Upserted(make_lease(1, version=version)),)))
            await anext(stream)
            came.append(now())
        return came

    assert run_virtually(main()) == pytest.approx([0, pause, 2 * pause])


async def test_only_watchers_of_the_whole_table_count_as_followers() -> None:
    broker = broker_with()
    streams = watch_all(broker, ""), watch_own(broker, "a")
    for stream in streams:
        await anext(stream)
    assert (broker.watchers, broker.followers) == (2, 1)
    for stream in streams:
        await stream.aclose()
    assert (broker.watchers, broker.followers) == (0, 0)
