"""Every watcher ends up with the table, however slowly it reads and however often it reconnects."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from typing import Any

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.table import (
    NodeOverrides,
    PublicIpOverride,
    Removed,
    Step,
    StoreStatus,
    Table,
    Upserted,
)
from tests.examples.leases import NETWORK, by_name, make_lease, network, read
from tests.services.lease import listing, news
from tests.stores.played import PlayedService, settle
from tests.virtual_time import run_virtually

A, A2, B, C = make_lease(1), make_lease(1, version=2), make_lease(2), make_lease(3)
HOST_GW = network('{"Network":"10.0.0.0/8","Backend":{"Type":"host-gw"}}')
UP, AWAY = StoreStatus("test", True), StoreStatus("test", False, "connection refused")
CHOSEN = (PublicIpOverride(4, "192.168.0.7", "a note"),)
OTHER = (PublicIpOverride(6, "fd00::7", "a note"),)


async def told(stream: AsyncGenerator[bytes, None]) -> Step | None:
    """The next step of the stream; None: there is none, and the stream is over."""
    waiting = asyncio.ensure_future(anext(stream))
    await settle()
    if waiting.done():
        return read(waiting.result())
    waiting.cancel()
    return None


async def test_the_first_message_is_a_whole_small_table() -> None:
    assert await told(PlayedService(A, B).watch()) == Step(
        reset=True, changes=(Upserted(A), Upserted(B)), network=NETWORK, store=UP, synced=True, cursor="e:0"
    )


async def test_no_leases_are_said_by_a_reset_that_is_synced() -> None:
    step = read(await anext(PlayedService().watch()))
    assert (step.reset, step.changes, step.synced) == (True, (), True)


BAD = news(network_error="bad")
HAPPENS: dict[str, tuple[list[Any], Step | None]] = {
    # Defect 2 of flannel v0.28: it missed changed attributes, and removed the own subnet.
    "a relisting is a difference by value": (
        [listing(by_name(A2, B, C), NETWORK)],
        Step(changes=(Upserted(A2), Upserted(C))),
    ),
    "a relisting lacks a lease": ([listing(by_name(B), NETWORK)], Step(changes=(Removed(A.name),))),
    "a relisting is equal to the table": ([listing(by_name(B, A), NETWORK)], None),
    "a relisting says that the store is there": ([AWAY, listing(by_name(A, B), NETWORK)], Step(store=UP)),
    "the last good network stays": (
        [listing(by_name(A, B), None, "the key is missing")],
        Step(network_error="the key is missing"),
    ),
    "the network is what it was": ([news(network=NETWORK)], None),
    "the network is another": ([news(network=HOST_GW)], Step(network=HOST_GW)),
    "the network is right again, which clears the error": ([BAD, news(network=NETWORK)], Step(network=NETWORK)),
    "an error that is known": ([BAD, BAD], None),
    "another error": ([BAD, news(network_error="worse")], Step(network_error="worse")),
    "what changes nothing is left out": (
        [news(Upserted(A), Removed("nobody"), Upserted(C))],
        Step(changes=(Upserted(C),)),
    ),
    "a lease that goes and comes at once has only changed": (
        [news(Removed(A.name), Upserted(A), Upserted(A), Upserted(A2), Removed(C.name))],
        Step(changes=(Upserted(A2),)),
    ),
    # Defect 1 of flannel v0.28: one bad key emptied every node.
    "a refused key": ([news(refused={"foo": "is no lease"})], None),
    "a refused key in a listing": ([listing(by_name(A, B), NETWORK, refused={"foo": "is no lease"})], None),
    "the store is there as before": ([UP], None),
    "the store is away": ([AWAY], Step(store=AWAY)),
}


@pytest.mark.parametrize("case", HAPPENS)
async def test_what_happens_in_the_store_is_told_as_what_it_changes(case: str) -> None:
    (*before, event), expected = HAPPENS[case]
    service = PlayedService(A, B)
    service.take(*before)
    cursor = read(await anext(service.watch())).cursor
    stream = service.watch(cursor)
    await anext(stream)
    service.take(event)
    step = await told(stream)
    newest = read(await anext(service.watch())).cursor
    assert step == (replace(expected, synced=True, cursor=newest) if expected else None)
    assert (newest == cursor) is (step is None), "what is no news is no change either"


async def test_a_cursor_that_resumes_brings_only_what_was_missed() -> None:
    service = PlayedService(A)
    service.tells(Upserted(B))
    stream = service.watch("e:0")
    assert read(await anext(stream)) == Step(synced=True, cursor="e:0")
    assert read(await anext(stream)) == Step(changes=(Upserted(B),), synced=True, cursor="e:1")


@pytest.mark.parametrize(
    "cursor", ["other:1", "nonsense", "e", "e:", "e:x", "e:-1", "e:77", ":1", "e:1:1", "e:²", "e:" + "9" * 5000]
)
async def test_a_cursor_that_is_not_ours_is_answered_with_a_reset(cursor: str) -> None:
    service = PlayedService(A)
    for version in range(1, 4):
        service.tells(Upserted(make_lease(1, version=version)))
    assert read(await anext(service.watch(cursor))).reset


@pytest.mark.parametrize(
    ("limits", "size", "oldest"),
    [({"most_entries": 3}, 1, 2), ({"most_bytes": 70_000}, 100, 8 - 5), ({"most_bytes": 1}, 1, 4)],
    ids=["in entries", "in bytes", "at least the newest"],
)
async def test_the_history_is_bounded_and_who_is_within_it_resumes(
    limits: dict[str, int], size: int, oldest: int
) -> None:
    service = PlayedService(**limits)  # type: ignore[arg-type]  # only limits
    for version in range(5):
        service.tells(*(Upserted(make_lease(number, version=version)) for number in range(size)))
    for position in range(6):
        first = read(await anext(service.watch(f"e:{position}")))
        assert first.reset is (position < oldest)


async def test_a_watcher_that_falls_off_the_history_gets_a_reset() -> None:
    service = PlayedService(A, most_entries=2)
    stream = service.watch()
    await anext(stream)
    for version in range(1, 10):
        service.tells(Upserted(make_lease(1, version=version)))
    step = read(await anext(stream))
    assert step.reset
    assert step.changes == (Upserted(make_lease(1, version=9)),)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([news(Upserted(A)), news(Upserted(B)), news(Upserted(A2), Removed(B.name))], "changes"),
        ([news(network_error="bad"), news(network=NETWORK)], "network"),
        ([news(network=HOST_GW), news(network_error="bad")], "network"),
        ([news(network_error="bad"), news(network=NETWORK), news(network_error="worse")], "network"),
        ([news(network=HOST_GW), news(network=NETWORK)], "network"),
        ([AWAY, UP], "store"),
    ],
)
async def test_several_steps_that_were_missed_come_as_one_and_end_as_one_by_one(
    events: list[Any], expected: str
) -> None:
    service, one_by_one, at_once = PlayedService(), Table(), Table()
    stream = service.watch()
    one_by_one.fold(first := read(await anext(stream)))
    at_once.fold(first)
    for event in events:
        service.take(event)
        one_by_one.fold(read(await anext(stream)))
    late = service.watch("e:0")
    await anext(late)
    step = read(await anext(late))
    at_once.fold(step)
    for name in ("leases", "network", "network_error", "store", "cursor"):
        assert getattr(at_once, name) == getattr(one_by_one, name)
    if expected == "changes":
        assert step == Step(changes=(Upserted(A2), Removed(B.name)), synced=True, cursor="e:3")


async def test_all_watchers_get_the_same_bytes() -> None:
    service = PlayedService(A)
    streams = [service.watch() for _ in range(3)]
    first = [await anext(stream) for stream in streams]
    service.tells(Upserted(B))
    second = [await anext(stream) for stream in streams]
    for messages in (first, second):
        assert all(message is messages[0] for message in messages)


async def test_before_the_first_snapshot_only_the_trouble_is_told() -> None:
    service = PlayedService(listed=False)
    for stream in (service.watch(), service.watch_own("node1")):
        step = read(await anext(stream))
        assert step == Step(store=StoreStatus("test", False, "the test store has not answered yet"))
    service.take(AWAY, news(network=NETWORK), news(Upserted(A), network_error="bad"))
    step = read(await anext(service.watch("e:0")))
    assert step == Step(store=AWAY, network_error="bad")
    service.take(listing({}, None))
    step = read(await anext(service.watch()))
    assert (step.reset, step.changes, step.synced, bool(step.network_error)) == (True, (), True, True)


async def test_the_own_view_shows_the_own_lease_only() -> None:
    service = PlayedService(A, B)
    stream = service.watch_own("node1")
    first = read(await anext(stream))
    assert (first.reset, first.changes, first.network, first.synced) == (True, (Upserted(A),), NETWORK, True)
    service.tells(Upserted(make_lease(1, node="node2")))
    assert read(await anext(stream)).changes == (Removed(A.name),), "it is not ours any more"
    service.tells(Upserted(make_lease(1, node="node1", version=1)))
    assert read(await anext(stream)).changes == (Upserted(make_lease(1, node="node1", version=1)),)
    service.tells(network=HOST_GW)
    assert read(await anext(stream)).network == HOST_GW
    service.take(AWAY)
    assert read(await anext(stream)).store == AWAY


async def test_a_dataplane_is_told_first_and_ever_after_what_is_chosen_for_its_node() -> None:
    service = PlayedService(A)
    service.tells(overrides={"node1": CHOSEN, "node2": OTHER})
    for cursor, second in (("", Step(reset=True)), ("e:0", Step())):
        stream = service.watch_as("node1", cursor)
        assert read(await anext(stream)) == Step(overrides=NodeOverrides({"node1": CHOSEN}, complete=True))
        assert read(await anext(stream)).reset == second.reset
        waiting = asyncio.ensure_future(anext(stream))
        service.tells(overrides={"node1": CHOSEN})
        await settle()
        assert not waiting.done(), "it is another node's"
        service.tells(overrides={"node1": OTHER})
        assert read(await waiting) == Step(overrides=NodeOverrides({"node1": OTHER}))
        service.tells(overrides={})
        assert read(await anext(stream)) == Step(overrides=NodeOverrides({"node1": ()}))
        service.tells(overrides={"node1": CHOSEN, "node2": OTHER})


async def test_a_dataplane_for_which_nothing_is_chosen_is_told_that() -> None:
    stream = PlayedService(A).watch_as("node1")
    assert read(await anext(stream)) == Step(overrides=NodeOverrides({}, complete=True))
    unsynced = PlayedService(listed=False)
    unsynced.tells(overrides={"node1": CHOSEN})
    assert read(await anext(unsynced.watch_as("node1"))).overrides is None, "it is not known yet"


async def test_a_relay_is_told_what_is_chosen_for_every_node_and_who_only_looks_nothing() -> None:
    service = PlayedService(A)
    service.tells(overrides={"node1": CHOSEN, "node2": OTHER})
    relay, looker, own = service.watch(relayed=True), service.watch(), service.watch_own("node1")
    assert read(await anext(relay)) == Step(overrides=NodeOverrides({"node1": CHOSEN, "node2": OTHER}, complete=True))
    for stream in (relay, looker, own):
        assert read(await anext(stream)).reset
    service.tells(overrides={"node2": CHOSEN})
    assert read(await anext(relay)) == Step(overrides=NodeOverrides({"node1": (), "node2": CHOSEN}))
    assert [await told(stream) for stream in (looker, own)] == [None, None]


async def test_a_change_elsewhere_is_not_told_to_the_own_view() -> None:
    service = PlayedService(A, B)
    stream = service.watch_own("node1")
    await anext(stream)
    waiting = asyncio.ensure_future(anext(stream))
    await settle()
    for version in range(100):
        service.tells(Upserted(make_lease(2, version=version)))
        await asyncio.sleep(0)
    assert not waiting.done()
    service.tells(Removed(A.name))
    assert read(await waiting).changes == (Removed(A.name),)


async def test_stopping_ends_every_stream_with_unavailable() -> None:
    service, unsynced = PlayedService(A), PlayedService(listed=False)
    streams = [service.watch(), service.watch_own("node1"), unsynced.watch()]
    for stream in streams:
        await anext(stream)
    waiting = [asyncio.ensure_future(anext(stream)) for stream in streams]
    await settle()
    service.stop()
    unsynced.stop()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        assert isinstance(result, Unavailable)
    late = service.watch()
    await anext(late)
    with pytest.raises(Unavailable, match="reconnect"):
        await anext(late)


async def test_an_acquisition_is_answered_when_the_watch_shows_the_lease() -> None:
    service = PlayedService()
    service.store.on_acquire = lambda request: A
    request = {"node": "node1", "subnets": [{"public_address": "172.16.0.1"}], "backend_type": "vxlan"}
    waiting = asyncio.ensure_future(service.call("AcquireLease", **request))
    await settle()
    service.tells(Upserted(make_lease(1, version=3)))
    await settle()
    assert not waiting.done()
    service.tells(Upserted(A))
    assert (await waiting).lease.name == A.name
    assert (await service.call("AcquireLease", **request)).lease.name == A.name, "at once"


async def test_the_leases_of_a_node_follow_the_table() -> None:
    async def of(node: str) -> set[str]:
        return {lease.name for lease in (await service.call("ListLeases", node=node)).leases}

    service, moved = PlayedService(A, B), make_lease(2, node="node1")
    service.tells(Upserted(moved), Removed(A.name), Upserted(A))
    assert (await of("node1"), await of("node2")) == ({moved.name, A.name}, set())
    service.take(listing({}, NETWORK))
    assert await of("node1") == set()


@pytest.mark.parametrize(("pause", "is_ended"), [(0.0, False), (20.0, False), (3600.0, True)])
def test_who_takes_nothing_for_half_a_minute_is_ended(pause: float, is_ended: bool) -> None:
    """A client that takes a message at a time, with a pause in between."""

    async def main() -> None:
        service, table = PlayedService(*map(make_lease, range(3_000))), Table()

        async def client() -> None:
            async for message in service.watch():
                table.fold(read(message))
                if table.synced:
                    return
                await asyncio.sleep(pause)

        task = asyncio.create_task(client())
        await asyncio.wait([task])
        assert (task.cancelled(), table.synced) == (is_ended, not is_ended)
        assert not is_ended or asyncio.get_running_loop().time() < 30
        await settle()
        assert service.streams == (0, 0)

    run_virtually(main())


def test_a_stream_that_waits_for_news_is_left_alone() -> None:
    async def main() -> None:
        service = PlayedService(A)
        stream = service.watch()
        await anext(stream)
        waiting = asyncio.ensure_future(anext(stream))
        await asyncio.sleep(86_400)
        service.tells(Upserted(B))
        assert read(await waiting).changes == (Upserted(B),)

    run_virtually(main())
