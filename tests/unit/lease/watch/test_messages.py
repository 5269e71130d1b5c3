"""What goes into one message of a watcher of all leases, and what is told together."""

import asyncio
from dataclasses import replace

import pytest

from flannelette.services.core.leases.lease import OpaqueData
from flannelette.services.core.leases.table import Removed, Step, Table, Upserted
from tests.examples.leases import by_name, make_lease, read
from tests.stores.played import PlayedService
from tests.virtual_time import now, run_virtually

A, B = make_lease(1), make_lease(2)
PAUSE = 0.002
"""Seconds between two messages to a watcher, where there are few watchers."""


async def test_a_snapshot_in_many_messages_is_of_the_moment_of_its_cursor() -> None:
    leases = [make_lease(number) for number in range(1200)]
    first, *_, last = sorted(leases, key=lambda lease: lease.name)
    service = PlayedService(*leases)
    stream = service.watch()
    table = Table()
    table.fold(read(await anext(stream)))
    moved = replace(last, name="10.0.0.0-25")  # the subnet of a lease that was not sent yet, under a name that was
    service.tells(Removed(first.name), Removed(last.name), Upserted(moved))
    while not table.synced:
        table.fold(read(await anext(stream)))
    held = [lease for lease in leases if lease not in (first, last)]
    assert table.leases == by_name(*held, moved)
    assert table.cursor == "e:1"


async def test_a_snapshot_has_messages_of_at_most_500_changes_and_64_kib() -> None:
    opaque = OpaqueData('"' + "x" * 8_000 + '"')
    long = [replace(lease, subnets=(replace(lease.subnets[0], data=opaque),)) for lease in map(make_lease, range(20))]
    leases = [*long, *map(make_lease, range(20, 1200))]
    service = PlayedService(*leases)
    stream = service.watch()
    table, messages = Table(), []
    while not table.synced:
        messages.append(await anext(stream))
        table.fold(read(messages[-1]))
    assert table.leases == by_name(*leases)
    assert all(len(read(message).changes) <= 500 for message in messages)
    assert all(len(message) <= 1.1 * (1 << 16) for message in messages)


async def test_a_burst_larger_than_a_message_comes_in_several_that_can_be_resumed() -> None:
    service = PlayedService()
    stream, table = service.watch(), Table()
    table.fold(read(await anext(stream)))
    service.tells(*(Upserted(make_lease(number)) for number in range(1200)))
    table.fold(read(await anext(stream)))
    assert 0 < len(table.leases) <= 500
    resumed = service.watch(table.cursor)
    while len(table.leases) < 1200:
        step = read(await anext(resumed))
        assert not step.reset
        table.fold(step)
    assert table.cursor == (await service.call("ListLeases")).cursor


def test_what_follows_a_change_within_the_pause_comes_together_and_the_first_one_at_once() -> None:
    async def main() -> None:
        service = PlayedService()
        stream = service.watch()
        await anext(stream)
        service.tells(Upserted(A))
        assert read(await anext(stream)).changes == (Upserted(A),)
        assert now() == 0
        waiting = asyncio.ensure_future(anext(stream))
        service.tells(Upserted(B))
        await asyncio.sleep(PAUSE / 2)
        service.tells(Removed(A.name))
        assert not waiting.done()
        assert read(await waiting) == Step(changes=(Upserted(B), Removed(A.name)), synced=True, cursor="e:3")
        assert now() == PAUSE

    run_virtually(main())


def test_between_the_messages_of_one_catch_up_is_no_pause_and_after_the_last_one_is() -> None:
    async def main() -> list[float]:
        service, came = PlayedService(), list[float]()
        stream, table = service.watch(), Table()
        table.fold(read(await anext(stream)))
        service.tells(*(Upserted(make_lease(number)) for number in range(1200)))
        while len(table.leases) < 1200:
            table.fold(read(await anext(stream)))
            came.append(now())
        service.tells(Upserted(make_lease(1, version=1)))
        await anext(stream)
        return [*came, now()]

    assert run_virtually(main()) == [0, 0, 0, PAUSE]


@pytest.mark.parametrize(("watchers", "pause"), [(1, PAUSE), (2, PAUSE), (600, 0.6), (2_000, 2.0), (60_000, 2.0)])
def test_changes_all_the_time_are_sent_together_for_longer_the_more_watchers_there_are(
    watchers: int, pause: float
) -> None:
    async def main() -> list[float]:
        service, came = PlayedService(), list[float]()
        stream = service.watch()
        await anext(stream)
        service.crowd(watchers)
        for version in range(3):
            service.tells(Upserted(make_lease(1, version=version)))
            await anext(stream)
            came.append(now())
        return came

    assert run_virtually(main()) == pytest.approx([0, pause, 2 * pause])


async def test_a_burst_of_long_leases_comes_in_messages_of_64_kib() -> None:
    opaque = OpaqueData('"' + "x" * 8_000 + '"')
    long = [replace(lease, subnets=(replace(lease.subnets[0], data=opaque),)) for lease in map(make_lease, range(20))]
    service = PlayedService()
    stream, table = service.watch(), Table()
    table.fold(read(await anext(stream)))
    for burst in (long[:12], *([lease] for lease in long[12:])):
        service.tells(*map(Upserted, burst))
    sizes = list[int]()
    while len(table.leases) < len(long):
        message = await anext(stream)
        sizes.append(len(message))
        table.fold(read(message))
        assert table.synced
    assert len(sizes) == 3
    assert max(sizes) <= 1 << 16


async def test_only_watchers_of_the_whole_table_count_as_followers() -> None:
    service = PlayedService()
    streams = service.watch(), service.watch_own("a")
    for stream in streams:
        await anext(stream)
    assert service.streams == (2, 1)
    for stream in streams:
        await stream.aclose()
    assert service.streams == (0, 0)
