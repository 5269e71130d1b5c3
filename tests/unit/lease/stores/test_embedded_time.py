"""The embedded store and time: leases run out, clocks are set, services are away."""

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.table import Removed, StoreStatus, Upserted
from flannelette.services.lease.stores import embedded as module
from flannelette.services.lease.stores.embedded import Database, EmbeddedStore
from flannelette.services.lease.stores.store import Changed, Snapshot
from tests.examples.leases import SMALL, by_name, make_request
from tests.stores.embedded import DAY, Clock, Open


async def test_a_lease_has_its_full_time_in_whole_seconds(store: EmbeddedStore) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    assert (lease.name, lease.node, lease.expires_at) == ("10.5.1.0-24", "a", 1_000_101.0)


async def test_a_lease_runs_out_at_its_time(store: EmbeddedStore, clock: Clock) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    events = store.watch()
    await anext(events)
    clock.now = 1_000_100.99
    assert store._seconds_to_wait() == pytest.approx(0.01)
    clock.now = 1_000_101.0
    assert await anext(events) == Changed((Removed(lease.name),))
    again = await store.acquire(make_request("b", "172.16.0.1", "10.5.1.0/24"))
    assert (again.name, again.node) == (lease.name, "b"), "neither its subnet nor its address is held any more"


@pytest.mark.parametrize("jump", [3600.0, -3600.0, DAY, -DAY, 40 * 365 * DAY])
async def test_a_clock_that_is_set_takes_no_time_from_a_lease_and_gives_it_none(
    store: EmbeddedStore, clock: Clock, jump: float
) -> None:
    a = await store.acquire(make_request("a", "172.16.0.1"))
    events = store.watch()
    await anext(events)
    clock.now += 40
    clock.set(jump)
    assert await anext(events) == Changed((Upserted(a.with_time(1_000_101.0 + jump)),))
    clock.set(-jump)
    assert (await store.acquire(make_request("b", "172.16.0.2"))).name != a.name
    assert (await store.relist()).leases[a.name].expires_at == pytest.approx(1_000_101.0)
    clock.set(jump)
    assert (await store.renew("a", a.name)).expires_at == pytest.approx(clock.now + 100, abs=1)
    clock.now += 101
    await store.release("nobody", "")
    assert not (await store.relist()).leases


async def test_a_clock_that_slews_is_followed(store: EmbeddedStore, clock: Clock) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    for _ in range(30):
        clock.set(4.0)
        await store.release("nobody", "")
    assert (await store.relist()).leases.keys() == {lease.name}


@pytest.mark.parametrize("jump", [DAY, -DAY, 40 * 365 * DAY])
async def test_a_clock_that_was_set_while_there_was_no_service_takes_no_lease(
    reopen: Open, clock: Clock, jump: float
) -> None:
    a = await reopen().acquire(make_request("a", "172.16.0.1"))
    clock.set(jump)
    store = reopen()
    assert (await store.acquire(make_request("b", "172.16.0.2", "10.5.1.0/24"))).name != a.name
    clock.now += 50
    assert (await store.renew("a", a.name)).name == a.name
    clock.set(-jump)
    assert (await store.renew("a", a.name)).expires_at == pytest.approx(1_000_151.0, abs=1)


async def test_what_a_disk_cannot_take_when_the_clock_is_set_is_written_later(
    store: EmbeddedStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    with monkeypatch.context() as full:
        full.setattr(store._database, "write", _fail)
        clock.set(DAY)
        with pytest.raises(Unavailable):
            await store.release("nobody", "")
    await store.release("nobody", "")
    assert (await store.relist()).leases[lease.name].expires_at == 1_000_101.0 + DAY


async def test_a_service_that_starts_on_a_full_disk_serves_and_gives_the_minute_when_it_can(
    reopen: Open, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = await reopen().acquire(make_request("a", "172.16.0.1"))
    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.001)
    with monkeypatch.context() as full:
        full.setattr(Database, "write", _fail)
        clock.now += DAY
        events = reopen().watch()
        assert await anext(events) == Snapshot(by_name(lease), SMALL)
        assert await anext(events) == StoreStatus("embedded", False, "the disk is full")
    assert await anext(events) == StoreStatus("embedded", True)
    assert await anext(events) == Changed((Upserted(lease.with_time(1_086_461.0)),))


def _fail(*_: object) -> None:
    raise Unavailable("the disk is full")


async def test_leases_survive_a_restart_and_those_that_ran_out_have_a_minute_more(reopen: Open, clock: Clock) -> None:
    store = reopen()
    a = await store.acquire(make_request("a", "172.16.0.1"))
    clock.now += 60
    b = await store.acquire(make_request("b", "172.16.0.2"))
    store = reopen()
    assert await anext(store.watch()) == Snapshot(by_name(a.with_time(1_000_121.0), b), SMALL)
    clock.now += 80
    store = reopen()
    both = by_name(a.with_time(1_000_201.0), b.with_time(1_000_201.0))
    assert await anext(store.watch()) == Snapshot(both, SMALL)
    assert await store.renew("b", b.name) == b.with_time(1_000_241.0)
    clock.now += 61
    assert await anext(store.watch()) == Snapshot(by_name(b.with_time(1_000_241.0)), SMALL)
