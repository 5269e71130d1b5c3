"""A node that changes its lease again and again: what peers see of it, what of the others, and what it is called."""

import asyncio
from dataclasses import replace
from ipaddress import ip_network

import pytest

from flannelette.services.core.errors import Exhausted
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.leases.table import Removed, Upserted
from flannelette.services.lease.admission import AT_ONCE, SECONDS_A_CHANGE
from tests.examples.leases import NETWORK, by_name, make_lease, make_request
from tests.services.lease import listing, news
from tests.stores.guard_scene import LEASES, World, played

NAME = LEASES[0].name
STEP = 1 / 80


def changed(version: int, number: int = 1) -> Upserted:
    return Upserted(make_lease(number, version=version))


async def flap(world: World, seconds: float, number: int = 1) -> Lease:
    """80 changes a second; the last of them."""
    for version in range(1, round(seconds / STEP) + 1):
        world.take(news(changed(version, number)))
        await asyncio.sleep(STEP)
    return make_lease(number, version=version)


def named(world: World) -> list[str]:
    return [each.problem for each in world.gate.findings()]


async def tables(world: World, seconds: float) -> set[Lease]:
    """The values that peers see of the lease meanwhile."""
    seen = set()
    for _ in range(round(seconds / STEP)):
        seen.add(world.served[NAME])
        await asyncio.sleep(STEP)
    return seen


def test_peers_see_few_of_the_changes_and_the_last_one_once_the_node_is_calm() -> None:
    async def scene(world: World) -> None:
        seen = asyncio.create_task(tables(world, 60))
        last = await flap(world, 60)
        assert len(await seen) <= AT_ONCE + 60 / SECONDS_A_CHANGE + 1
        await asyncio.sleep(SECONDS_A_CHANGE + 1)
        assert world.served[NAME] == last

    played(scene)


def test_the_node_is_named_until_a_minute_after() -> None:
    async def scene(world: World) -> None:
        assert named(world) == []
        await flap(world, 2)
        problem = "node node1 changes its MAC or public address too often: its peers keep the last value."
        assert named(world) == [problem]
        await flap(world, 2, number=2)
        assert "and 1 other" in named(world)[0]
        await asyncio.sleep(61)
        assert named(world) == []

    played(scene)


def test_changes_of_other_nodes_pass_at_once() -> None:
    async def scene(world: World) -> None:
        await flap(world, 2)
        for number in range(2, 21):
            world.take(news(changed(1, number)))
            assert world.served[LEASES[number - 1].name] == make_lease(number, version=1)

    played(scene)


def test_a_node_that_changes_once_in_three_seconds_never_waits() -> None:
    async def scene(world: World) -> None:
        for version in range(1, 100):
            world.take(news(changed(version)))
            assert world.served[NAME] == make_lease(1, version=version)
            await asyncio.sleep(SECONDS_A_CHANGE)
        assert named(world) == []

    played(scene)


def test_renewals_and_reservations_are_no_changes() -> None:
    async def scene(world: World) -> None:
        for number in range(1, 200):
            renewed = LEASES[0].with_time(2_000_000_000.0 + number)
            part = Subnet(ip_network(f"10.1.{number}.0/24"))
            reserved = Lease(f"10.1.{number}.0-24", "node1", (part,), reserved=True)
            world.take(news(Upserted(renewed), Upserted(reserved)))
            assert world.served[NAME] == renewed
            assert world.served[reserved.name] == reserved

    played(scene)


def test_a_lease_that_comes_and_goes_is_counted_and_its_removal_never_waits() -> None:
    async def scene(world: World) -> None:
        came = 0
        for version in range(1, 200):
            world.take(news(Removed(NAME), released=frozenset([NAME])))
            assert NAME not in world.served
            world.take(news(changed(version)))
            came += NAME in world.served
        assert came == AT_ONCE
        await asyncio.sleep(SECONDS_A_CHANGE + 1)
        assert world.served[NAME] == make_lease(1, version=199)
        world.take(news(changed(1)), news(Removed(NAME), released=frozenset([NAME])))
        await asyncio.sleep(SECONDS_A_CHANGE + 1)
        assert NAME not in world.served

    played(scene)


def test_a_node_that_takes_one_subnet_after_another_is_counted_as_one() -> None:
    async def scene(world: World) -> None:
        for number in range(100, 300):
            world.take(news(Upserted(replace(make_lease(number), node="rover"))))
        assert len(world.served) == 20 + AT_ONCE

    played(scene)


def test_a_new_listing_of_the_store_passes_no_more_than_its_changes() -> None:
    async def scene(world: World) -> None:
        seen = set()
        for version in range(1, 200):
            leases = by_name(make_lease(1, version=version), *LEASES[1:])
            world.take(listing(leases, NETWORK))
            seen.add(world.served[NAME])
        assert (len(seen), world.table) == (AT_ONCE, 20)
        await asyncio.sleep(SECONDS_A_CHANGE + 1)
        assert world.served[NAME] == make_lease(1, version=199)

    played(scene)


def test_a_lease_that_goes_back_to_what_peers_have_waits_no_more() -> None:
    async def scene(world: World) -> None:
        await flap(world, 2)
        before = world.served[NAME]
        world.take(news(Upserted(before)))
        await asyncio.sleep(3 * SECONDS_A_CHANGE)
        assert world.served[NAME] == before

    played(scene)


def test_a_request_for_another_lease_is_refused_meanwhile_and_one_for_the_same_never() -> None:
    async def scene(world: World) -> None:
        world.gate.require_calm(make_request("node1", "172.16.9.9"))
        await flap(world, 2)
        with pytest.raises(Exhausted, match=r"peers keep its last one, and it may change again in \d+ s"):
            world.gate.require_calm(make_request("node1", "172.16.9.9"))
        world.gate.require_calm(make_request("node2", "172.16.9.9"))
        await asyncio.sleep(2 * SECONDS_A_CHANGE)
        world.gate.require_calm(make_request("node1", "172.16.9.9"))

    played(scene)
