"""What every store guarantees (services/lease/stores/store.py), against each of them."""

import asyncio
import time
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.errors import Exhausted, NotFound, NotYet
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, VxlanData
from tests.services.follower import following
from tests.stores.every import DUAL, FOUR_SUBNETS, NETWORK, OTHER_NETWORK, World, asks, told


async def test_the_first_event_is_a_complete_snapshot(world: World) -> None:
    lease = await world.open().acquire(asks(1))
    async with following(world.open()) as seen:
        first = seen.listings[0]
        assert seen.events[0] is first
        assert first.network is not None
        assert first.network.source == NETWORK
        assert {name: told(held) for name, held in first.leases.items()} == {lease.name: told(lease)}


async def test_a_lease_is_what_was_asked_for_in_the_network_for_its_time(world: World) -> None:
    store = world.open(lease_seconds=1000)
    async with following(store) as seen:
        before = time.time()
        lease = await store.acquire(asks(1))
        assert lease.expires_at is not None
        assert before + 999 <= lease.expires_at <= time.time() + 1002
        assert (lease.node, lease.backend_type, lease.reserved) == ("n1", "vxlan", False)
        (subnet,) = lease.subnets
        assert subnet.cidr.subnet_of(ip_network("10.5.0.0/16"))  # type: ignore[arg-type]  # both are IPv4
        assert (subnet.public_address, subnet.data) == (ip_address("10.99.0.1"), VxlanData(1, "02:00:00:00:00:01"))
        await seen.until(lambda f: lease.name in f.leases)
        assert {name: told(each) for name, each in seen.leases.items()} == {lease.name: told(lease)}


async def test_asking_again_changes_what_is_published_and_keeps_the_subnet(world: World) -> None:
    store = world.open()
    async with following(store) as seen:
        lease = await store.acquire(asks(1))
        assert (await store.acquire(asks(1))).name == lease.name
        other_mac = await store.acquire(asks(1, mac=2))
        other_address = await store.acquire(asks(9, node="n1", mac=2))
        assert lease.name == other_mac.name == other_address.name
        await seen.until(lambda f: told(f.leases.get(lease.name, lease)) == told(other_address))
        assert seen.nodes == {lease.name: "n1"}


async def test_the_previous_subnet_is_given_again_if_it_is_free(world: World) -> None:
    store = world.open()
    assert (await store.acquire(asks(1, previous="10.5.77.0/24"))).name == "10.5.77.0-24"
    assert (await store.acquire(asks(2, previous="10.5.77.0/24"))).name != "10.5.77.0-24"
    assert (await store.acquire(asks(3, previous="10.7.0.0/24"))).name.startswith("10.5.")


async def test_an_address_that_another_node_holds_is_refused_with_both_names(world: World) -> None:
    store = world.open()
    await store.acquire(asks(1))
    with pytest.raises(NotYet, match=r"10\.99\.0\.1\b.*n1") as refusal:
        await store.acquire(asks(1, node="n2"))
    assert "n2" in str(refusal.value)
    assert (await store.acquire(asks(1))).node == "n1"


async def test_nodes_that_ask_at_once_get_different_subnets(world: World) -> None:
    store = world.open()
    leases = await asyncio.gather(*(store.acquire(asks(number)) for number in range(1, 31)))
    assert len({lease.name for lease in leases}) == 30


async def test_a_full_network_is_exhausted_until_one_is_released(world: World) -> None:
    await world.write_network(FOUR_SUBNETS)
    store = world.open()
    leases = [await store.acquire(asks(number)) for number in range(1, 5)]
    with pytest.raises(Exhausted, match="4 of 4"):
        await store.acquire(asks(5))
    await store.release("n2", leases[1].name)
    assert (await store.acquire(asks(5))).name == leases[1].name


async def test_renewing_gives_the_full_time_again(world: World) -> None:
    lease = await world.open(lease_seconds=500).acquire(asks(1))
    renewed = await world.open(lease_seconds=1000).renew("n1", lease.name)
    assert told(replace(renewed, claim_order=lease.claim_order)) == told(lease)
    assert renewed.expires_at is not None
    assert renewed.expires_at > time.time() + 990


async def test_what_a_node_does_not_hold_it_can_neither_renew_nor_release(world: World) -> None:
    store = world.open()
    async with following(store) as seen:
        lease = await store.acquire(asks(1))
        for node, name in (("n2", lease.name), ("n1", "10.5.200.0-24"), ("n1", "nonsense")):
            with pytest.raises(NotFound, match="does not hold"):
                await store.renew(node, name)
            await store.release(node, name)
        await seen.until(lambda f: f.nodes == {lease.name: "n1"})
        await store.release("n1", lease.name)
        await store.release("n1", lease.name)
        await seen.until(lambda f: not f.leases)
        with pytest.raises(NotFound):
            await store.renew("n1", lease.name)


async def test_leases_survive_a_restart_of_the_service(world: World) -> None:
    lease = await world.open().acquire(asks(1))
    store = world.open()
    assert (await store.renew("n1", lease.name)).name == lease.name
    assert (await store.acquire(asks(1))).name == lease.name
    async with following(store) as seen:
        assert seen.nodes == {lease.name: "n1"}


async def test_a_lease_that_is_not_renewed_runs_out(world: World) -> None:
    store = world.open(lease_seconds=1)
    async with following(store) as seen:
        lease = await store.acquire(asks(1))
        await seen.until(lambda f: lease.name in f.leases)
        await seen.until(lambda f: not f.leases)


async def test_a_lease_outside_a_changed_network_is_kept_until_it_is_released(world: World) -> None:
    """A regression test of hole 6."""
    old = await world.open().acquire(asks(1))
    await world.write_network(OTHER_NETWORK)
    store = world.open()
    assert (await store.acquire(asks(1))).name == old.name
    await store.release("n1", old.name)
    new = await store.acquire(asks(1))
    assert new.name.startswith("10.6.")
    async with following(store) as seen:
        assert old.name not in seen.leases
        assert seen.nodes == {new.name: "n1"}


async def test_after_an_undone_change_of_the_network_every_node_has_its_old_subnet_again(world: World) -> None:
    before = {number: await world.open().acquire(asks(number)) for number in range(1, 6)}
    await world.write_network(OTHER_NETWORK)
    store = world.open()
    await asyncio.gather(*(store.acquire(asks(number)) for number in before))
    await world.write_network(NETWORK)
    store = world.open()
    parts = [asks(number, previous=lease.name.replace("-", "/")) for number, lease in before.items()]
    after = await asyncio.gather(*map(store.acquire, parts))
    assert [lease.name for lease in after] == [lease.name for lease in before.values()]
    async with following(store) as seen:
        assert seen.nodes == {lease.name: lease.node for lease in after}, "and nothing is left of the other network"


async def test_a_second_family_renumbers_nobody_in_the_first(world: World) -> None:
    lease = await world.open().acquire(asks(1))
    await world.write_network(DUAL)
    parts = (*asks(1).parts, FamilyRequest(ip_address("fd99::1"), VxlanData(1, "02:00:00:00:00:02")))
    both = await world.open().acquire(LeaseRequest("n1", "vxlan", parts))
    assert both.subnets[0].cidr == lease.subnets[0].cidr
    await world.write_network(NETWORK)
    assert (await world.open().acquire(asks(1))).name == lease.name


async def test_without_a_configuration_nothing_is_leased_and_the_reason_is_told(world: World) -> None:
    await world.write_network(None)
    store = world.open()
    with pytest.raises(NotYet, match="configuration"):
        await store.acquire(asks(1))
    async with following(store) as seen:
        assert seen.network is None
        assert seen.network_error


async def test_the_configuration_may_come_break_and_be_mended_while_it_is_watched(world: World) -> None:
    await world.write_network(None)
    store = world.open()
    async with following(store) as seen:
        await world.write_network(NETWORK)
        await seen.until(lambda f: f.network is not None and f.network.source == NETWORK and not f.network_error)
        lease = await store.acquire(asks(1))
        await world.write_network("{broken")
        await seen.until(lambda f: "JSON" in f.network_error)
        await world.write_network(OTHER_NETWORK)
        await seen.until(
            lambda f: f.network is not None and f.network.source == OTHER_NETWORK and not f.network_error
        )
        assert seen.nodes == {lease.name: "n1"}


async def test_a_second_listing_has_everything_that_the_watch_has_told(world: World) -> None:
    store = world.open()
    async with following(store) as seen:
        leases = await asyncio.gather(*(store.acquire(asks(number)) for number in range(1, 4)))
        await seen.until(lambda f: len(f.leases) == 3)
        await store.release("n2", leases[1].name)
        await seen.until(lambda f: len(f.leases) == 2)
        again = await store.relist()
    assert {name: told(lease) for name, lease in again.leases.items()} == {
        name: told(lease) for name, lease in seen.leases.items()
    }
    assert again.network == seen.network
    assert not again.refused


async def test_a_dual_stack_network_gives_one_lease_with_both(world: World) -> None:
    await world.write_network(DUAL)
    store = world.open()
    first = await store.acquire(asks(1))
    assert [each.cidr.version for each in first.subnets] == [4], "the node has no IPv6 address yet"
    parts = (
        FamilyRequest(ip_address("10.99.0.1"), VxlanData(1, "02:00:00:00:00:01"), ip_network("10.5.9.0/24")),
        FamilyRequest(ip_address("fd99::1"), VxlanData(1, "02:00:00:00:00:02"), ip_network("fd00:0:0:9::/64")),
    )
    lease = await store.acquire(LeaseRequest("n1", "vxlan", parts))
    assert lease.name == "10.5.9.0-24&fd00:0:0:9::-64"
    async with following(store) as seen:
        assert told(seen.leases[lease.name]) == told(lease)
