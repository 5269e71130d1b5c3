"""Reservations and early reclaim: what every store that hands out subnets guarantees to an operator."""

import time
from dataclasses import replace
from ipaddress import ip_address, ip_network
from types import SimpleNamespace

import pytest

from flannelette.services.core.errors import AlreadyExists, Exhausted, InvalidInput, NotFound, NotYet
from flannelette.services.core.family import Network
from flannelette.services.core.ipam import Reclaim
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, VxlanData
from tests.etcd.server import EtcdServer
from tests.services.follower import following
from tests.stores.every import DUAL, FOUR_SUBNETS, NETWORK, EtcdWorld, World, asks, told


def cidrs(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ip_network, texts))


async def test_a_reservation_for_nobody_goes_to_nobody_until_it_is_ended(world: World) -> None:
    await world.write_network(FOUR_SUBNETS)
    store = world.open()
    async with following(store) as seen:
        reserved = await store.reserve(cidrs("10.5.0.64/26"), "")
        assert (reserved.name, reserved.node, reserved.reserved, reserved.addresses) == ("10.5.0.64-26", "", True, ())
        await seen.until(lambda f: f.leases.get(reserved.name) == reserved)
        others = [await store.acquire(asks(number, previous="10.5.0.64/26")) for number in range(1, 4)]
        assert reserved.name not in {lease.name for lease in others}
        with pytest.raises(Exhausted, match=r"4 of 4 /26 .* are taken \(3 leased, 1 reserved, 0 "):
            await store.acquire(asks(4))
        await store.unreserve(reserved.name)
        assert (await store.acquire(asks(4))).name == reserved.name


async def test_a_reservation_for_a_node_stays_one_through_everything_that_happens_to_it(
    world: World,
) -> None:
    """flannel turns it into a lease of 24 hours. A regression test of defect 14 of flannel v0.28."""
    store = world.open()
    reserved = await store.reserve(cidrs("10.5.7.0/24"), "n1")
    assert (await store.acquire(asks(2, previous="10.5.7.0/24"))).name != reserved.name
    async with following(store) as seen:
        for _ in range(2):
            lease = await store.acquire(asks(1))
            assert (lease.name, lease.reserved, lease.expires_at) == (reserved.name, True, None)
            assert (await store.renew("n1", lease.name)).reserved
            await seen.until(lambda f: bool(f.leases[reserved.name].addresses))
            assert seen.leases[reserved.name] == told(lease)
            await store.release("n1", lease.name)
            await seen.until(lambda f: replace(f.leases[reserved.name], claim_order=reserved.claim_order) == reserved)
            assert (await store.acquire(asks(9, node="n3", previous="10.5.7.0/24"))).name != reserved.name
    assert (await world.open().acquire(asks(1))).name == reserved.name, "also after a restart"


async def test_what_a_node_or_an_operator_gives_back_is_told_as_released_and_what_runs_out_is_not(
    world: World,
) -> None:
    store = world.open(lease_seconds=2)
    async with following(store) as seen:
        given_back, other = await store.acquire(asks(1)), await store.acquire(asks(2))
        reserved = await store.reserve(cidrs("10.5.200.0/24"), "")
        kept = await store.reserve(cidrs("10.5.201.0/24"), "n3")
        await store.acquire(asks(3))
        await store.release("n1", given_back.name)
        await store.release("n3", kept.name)
        await store.unreserve(reserved.name)
        await seen.until(lambda f: f.leases.keys() == {other.name, kept.name})
        await seen.until(lambda f: f.leases.keys() == {kept.name})
    released = {name for event in seen.news for name in event.released}
    assert released == {given_back.name, reserved.name}


async def test_a_node_that_has_a_lease_stays_there_when_another_subnet_is_reserved_for_it(world: World) -> None:
    store = world.open()
    lease = await store.acquire(asks(1, previous="10.5.9.0/24"))
    await store.reserve(cidrs("10.5.1.0/24"), "n1")
    assert (await store.acquire(asks(1))).name == lease.name
    await store.release("n1", lease.name)
    assert (await store.acquire(asks(1))).name == "10.5.1.0-24"


async def test_the_lease_of_a_node_becomes_its_reservation_and_a_lease_again(world: World) -> None:
    store = world.open()
    lease = await store.acquire(asks(1))
    async with following(store) as seen:
        for _ in range(2):
            kept = await store.reserve([subnet.cidr for subnet in lease.subnets], "n1")
            assert (kept.name, kept.reserved, kept.addresses) == (lease.name, True, lease.addresses)
            assert (await store.acquire(asks(1))).expires_at is None
        await store.unreserve(lease.name)
        await seen.until(lambda f: not f.leases[lease.name].reserved)
        assert (await store.acquire(asks(1))).expires_at is not None
        assert seen.nodes == {lease.name: "n1"}


async def test_what_overlaps_cannot_be_reserved_and_asking_twice_changes_nothing(world: World) -> None:
    store = world.open()
    lease = await store.acquire(asks(1, previous="10.5.9.0/24"))
    for _ in range(2):
        assert (await store.reserve(cidrs("10.5.7.0/24"), "n2")).node == "n2"
    for subnet, node, holder in (("10.5.9.0/24", "", "n1"), ("10.5.9.0/24", "n2", "n1"), ("10.5.7.0/24", "", "n2")):
        with pytest.raises(AlreadyExists, match=f"of node {holder}"):
            await store.reserve(cidrs(subnet), node)
    assert (await store.acquire(asks(1))).name == lease.name


@pytest.mark.parametrize(
    ("texts", "node", "message"),
    [
        (["10.6.7.0/24"], "", r"not a subnet of the network 10\.5\.0\.0/16: reserve a /24 from 10\.5\.1\.0 to"),
        (["10.5.7.0/25"], "", "not a subnet of the network"),
        (["10.5.0.0/24"], "", "not a subnet of the network"),
        ([], "", "cidrs"),
        (["10.5.7.0/24", "10.5.8.0/24"], "", "one of each address family"),
        (["fd01::/64"], "", "not a subnet of the network fd00::/48"),
        (["10.5.7.0/24"], "n1", "node n1 needs an IPv6 subnet too"),
    ],
)
async def test_what_no_node_could_get_cannot_be_reserved(
    world: World, texts: list[str], node: str, message: str
) -> None:
    await world.write_network(DUAL)
    with pytest.raises(InvalidInput, match=message):
        await world.open().reserve(cidrs(*texts), node)


async def test_dual_stack_can_be_reserved_for_a_node(world: World) -> None:
    await world.write_network(DUAL)
    store = world.open()
    reserved = await store.reserve(cidrs("10.5.9.0/24", "fd00:0:0:9::/64"), "n1")
    parts = (*asks(1).parts, FamilyRequest(ip_address("fd99::1"), VxlanData(1, "02:00:00:00:00:02")))
    assert (await store.acquire(LeaseRequest("n1", "vxlan", parts))).name == reserved.name


async def test_only_a_reservation_can_be_ended(world: World) -> None:
    store = world.open()
    lease = await store.acquire(asks(1))
    for name in (lease.name, "10.5.200.0-24", "nonsense"):
        with pytest.raises(NotFound, match=r"reservation"):
            await store.unreserve(name)


async def test_leases_of_nodes_that_are_gone_are_taken_back_on_demand(world: World) -> None:
    store = world.open()
    leases = {number: await store.acquire(asks(number)) for number in (1, 2, 3)}
    await store.reserve(cidrs("10.5.200.0/24"), "n4")
    await store.acquire(asks(4))
    for wanted in (Reclaim(node="n1"), Reclaim((leases[1].name,))):
        with pytest.raises(NotYet, match=r"n1.* is alive"):
            await store.reclaim(wanted, dry_run=False)
    assert await store.reclaim(Reclaim(unseen_seconds=0.0), dry_run=False) == ()
    store = world.open(later=True)
    async with following(store) as seen:
        would = await store.reclaim(Reclaim(node="n1"), dry_run=True)
        assert [(each.lease.name, each.lease.node) for each in would] == [(leases[1].name, "n1")]
        assert would[0].seen_at is not None
        assert seen.nodes[leases[1].name] == "n1", "a dry run takes nothing"
        await store.reclaim(Reclaim((leases[1].name,)), dry_run=False)
        await seen.until(lambda f: leases[1].name not in f.leases)
        rest = await store.reclaim(Reclaim(unseen_seconds=0.0), dry_run=False)
        assert {each.lease.node for each in rest} == {"n2", "n3"}
        await seen.until(lambda f: set(f.leases) == {"10.5.200.0-24"})
    assert (await store.acquire(asks(1, previous=leases[2].name.replace("-", "/")))).name == leases[2].name


async def test_a_reclaim_must_say_what_it_wants_and_take_nothing_that_was_set_aside(world: World) -> None:
    store = world.open(later=True)
    await store.reserve(cidrs("10.5.7.0/24"), "n4")
    for wanted in (Reclaim(), Reclaim(("10.5.7.0-24",), "n4"), Reclaim(node="n4", unseen_seconds=1.0)):
        with pytest.raises(InvalidInput, match="either names, or node, or unseen_for"):
            await store.reclaim(wanted, dry_run=False)
    with pytest.raises(NotYet, match="is a reservation"):
        await store.reclaim(Reclaim(("10.5.7.0-24",)), dry_run=False)
    for wanted in (Reclaim(node="n4"), Reclaim(("10.5.8.0-24",)), Reclaim(node="nobody")):
        with pytest.raises(NotFound):
            await store.reclaim(wanted, dry_run=False)


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Of the stores only: grpc, whose core asks the machine itself, would see calls that end before they begin."""
    clock = SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic)
    for module in ("tests.stores.every", "flannelette.services.lease.stores.etcd.store"):
        monkeypatch.setattr(f"{module}.time", clock)


@pytest.mark.parametrize("hours", [1, -1, 24, -24])
async def test_a_clock_that_is_set_makes_no_node_unseen(
    world: World, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    store = world.open()
    async with following(store) as seen:
        lease = await store.acquire(asks(1))
        await seen.until(lambda f: lease.name in f.leases)
        set_clock(monkeypatch, hours * 3600)
        with pytest.raises(NotYet, match=r"n1, which holds .* is alive"):
            await store.reclaim(Reclaim((lease.name,)), dry_run=False)
        assert await store.reclaim(Reclaim(unseen_seconds=600.0), dry_run=False) == ()
        assert (await store.acquire(asks(2))).name != lease.name
        assert (await store.renew("n1", lease.name)).name == lease.name
        assert lease.name in seen.leases


async def test_a_clock_that_is_set_makes_no_node_unseen_whose_session_has_ended(
    etcd: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = EtcdWorld.on(etcd)
    await world.write_network(NETWORK)
    store = world.open(later=True)
    async with following(store) as seen:
        lease = await store.acquire(asks(1))
        await seen.until(lambda f: lease.name in f.leases)
        set_clock(monkeypatch, 86_400)
        assert await store.reclaim(Reclaim(unseen_seconds=3600.0), dry_run=False) == ()
        (gone,) = await store.reclaim(Reclaim(unseen_seconds=0.0), dry_run=False)
        assert gone.lease.name == lease.name
        assert gone.seen_at is not None
        assert abs(gone.seen_at - time.time() - 86_400) < 60
    await world.close()
