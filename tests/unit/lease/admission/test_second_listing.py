"""What went from the store at once stays until the store says so a second time."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from structlog.typing import EventDict

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.table import Upserted
from tests.examples.leases import NETWORK, by_name
from tests.services.lease import listing
from tests.stores.guard_scene import LEASES, SECONDS, World, counts, played, texts


def test_peers_stay_until_the_store_says_a_second_time_that_they_are_gone(lines: list[EventDict]) -> None:
    """A regression test of defect 1 of flannel v0.28."""
    before = counts()

    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        assert (world.table, len(world.gate.held), world.listings) == (20, 20, 0)
        assert world.gate.held_since == pytest.approx(1000, abs=0.1)
        assert world.gate.held_reason == (
            "20 leases vanished from the fake store at once and are kept; the store is listed again in 30 s, "
            "unless an operator confirms the removal"
        )
        await asyncio.sleep(SECONDS - 1)
        assert world.table == 20
        await asyncio.sleep(2)
        assert (world.table, world.gate.held, world.listings) == (0, [], 1)
        assert (world.gate.held_since, world.gate.held_reason) == (None, "")
        await asyncio.sleep(10 * SECONDS)
        assert world.listings == 1

    played(scene)
    assert texts(lines) == [
        "many leases vanished from the store at once; they stay until a second listing confirms the removal",
        "removals that were held back are carried out",
    ]
    after = counts()
    assert {key: after[key] - before.get(key, 0) for key in after} == {
        "held": 20,
        "confirmed_by_listing": 20,
        **{key: 0 for key in after if key not in ("held", "confirmed_by_listing")},
    }


def test_what_is_there_in_the_second_listing_stays_and_is_asked_for_again(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        world.leases = by_name(LEASES[0])
        await asyncio.sleep(SECONDS + 1)
        assert world.gate.held == [LEASES[0].name]
        assert "the second listing has some of them" in world.gate.held_reason
        await asyncio.sleep(3 * SECONDS)
        assert world.listings == 4
        world.tells(Upserted(LEASES[0]))
        await asyncio.sleep(0.001)
        assert (world.table, world.gate.held) == (1, [])

    played(scene)
    assert texts(lines)[1:] == [
        "removals that were held back are carried out",
        "removals stay held back",
        "no removal is held back any more",
    ]


def test_while_the_store_is_away_what_is_held_stays_held_and_the_status_says_so(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        world.fault = Unavailable("etcd at 127.0.0.1 refuses connections")
        await asyncio.sleep(SECONDS + 60)
        assert world.table == 20
        assert "the second listing failed: etcd at 127.0.0.1 refuses connections" in world.gate.held_reason
        assert world.listings < 20
        world.fault = None
        await asyncio.sleep(10)
        assert world.table == 0

    played(scene)
    assert texts(lines)[1:-1] == ["removals stay held back"]


def test_while_there_is_no_network_what_is_held_stays_held_for_no_node_could_take_its_lease_again(
    lines: list[EventDict],
) -> None:
    """As after `etcdctl del --prefix /coreos.com/network`, or with an etcd that comes back empty."""

    async def scene(world: World) -> None:
        listing, error = world.relist, "there is no network configuration"

        async def empty() -> Any:
            return replace(await listing(), network=None, network_error=error)

        world.relist = empty  # type: ignore[method-assign]  # the whole prefix is gone
        world.tells(network_error=error)
        await world.lose(*LEASES)
        await asyncio.sleep(10 * SECONDS + 1)
        assert (world.table, world.listings) == (20, 10)
        assert (
            "the store has no network configuration that can be used; the store is listed again"
            in world.gate.held_reason
        )
        world.relist = listing  # type: ignore[method-assign]  # somebody writes it
        world.tells(network=NETWORK)
        await asyncio.sleep(SECONDS - 1)
        assert (world.table, world.listings) == (20, 10), "the nodes have their full time"
        await asyncio.sleep(2)
        assert (world.table, world.listings) == (0, 11)

    played(scene)
    assert texts(lines)[1:] == ["removals stay held back", "removals that were held back are carried out"]


def test_a_store_that_never_answers_the_second_listing_is_asked_again() -> None:
    async def scene(world: World) -> None:
        answers = world.relist

        async def silence() -> Any:
            await asyncio.sleep(1e9)
            raise AssertionError

        world.relist = silence  # type: ignore[method-assign]  # the store freezes
        await world.lose(*LEASES)
        await asyncio.sleep(SECONDS + 61)
        assert "the store does not answer" in world.gate.held_reason
        world.relist = answers  # type: ignore[method-assign]  # and thaws
        await asyncio.sleep(10)
        assert world.table == 0

    played(scene)


def test_leases_that_come_back_meanwhile_are_never_removed(lines: list[EventDict]) -> None:
    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        for lease in LEASES:
            world.leases[lease.name] = lease
            world.tells(Upserted(lease))
        await asyncio.sleep(2 * SECONDS)
        assert (world.table, world.gate.held, world.listings) == (20, [], 0)

    played(scene)
    assert texts(lines)[1:] == ["no removal is held back any more"]
    assert lines[-1]["of"] == 20


def test_a_second_burst_is_given_its_full_time() -> None:
    async def scene(world: World) -> None:
        await world.lose(*LEASES)
        await asyncio.sleep(SECONDS - 5)
        for lease in LEASES:
            world.leases[lease.name] = lease
        world.events.put_nowait(listing(dict(world.leases), NETWORK))
        await asyncio.sleep(1)
        await world.lose(*LEASES)
        await asyncio.sleep(SECONDS - 5)
        assert (world.table, world.listings) == (20, 0)
        await asyncio.sleep(10)
        assert world.table == 0

    played(scene)


def test_what_goes_while_the_second_listing_is_read_waits_for_the_next() -> None:
    async def scene(world: World) -> None:
        answer = world.relist

        async def slow() -> Any:
            listed = await answer()
            await asyncio.sleep(2)
            return listed

        world.relist = slow  # type: ignore[method-assign]  # the store is slow
        last = LEASES[-1]
        await world.lose(*LEASES[:-1])
        await asyncio.sleep(SECONDS + 1)
        await world.lose(last)
        await asyncio.sleep(2)
        assert world.gate.held == [last.name]
        assert ";" not in world.gate.held_reason.partition("; the store is listed again")[0]
        await asyncio.sleep(SECONDS + 3)
        assert world.table == 0

    played(scene)
