"""The embedded store: calls, time, and what it says happened."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from services.core.errors import NotFound, NotYet, Unavailable
from services.core.table import Removed, StoreStatus, Upserted
from services.lease.store import Changed, Snapshot
from services.lease.stores.embedded import EmbeddedStore
from services.lease.stores.embedded import store as module
from services.lease.stores.embedded.database import Database
from tests.lease_examples import NETWORK, NETWORK_JSON, SMALL, SMALL_JSON, by_name, make_request

DAY = 86_400.0


@dataclass
class Clock:
    now: float = 1_000_000.25
    jumps: float = 0.0
    """How far it was set."""

    def set(self, seconds: float) -> None:
        self.now += seconds
        self.jumps += seconds

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "net.json"
    path.write_text(SMALL_JSON)
    return path


Open = Callable[[], EmbeddedStore]


@pytest.fixture
def reopen(tmp_path: Path, config: Path, clock: Clock) -> Iterator[Open]:
    """Opens the store on one file; closes the one before."""
    opened: list[EmbeddedStore] = []

    def open_again() -> EmbeddedStore:
        if opened:
            opened.pop()._database.close()
        opened.append(
            EmbeddedStore(
                tmp_path / "l.db",
                net_config_path=config,
                lease_seconds=100,
                clock=clock,
                timer=lambda: clock.now - clock.jumps,
                draw=lambda n: 0,
            )
        )
        return opened[0]

    yield open_again
    opened.pop()._database.close()


@pytest.fixture
def store(reopen: Open) -> EmbeddedStore:
    return reopen()


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_lease_has_its_full_time_in_whole_seconds(store: EmbeddedStore) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    assert (lease.name, lease.node, lease.expires_at) == ("10.5.1.0-24", "a", 1_000_101.0)


async def test_acquiring_again_updates_what_is_published_and_the_time_and_keeps_the_subnet(
    store: EmbeddedStore, clock: Clock
) -> None:
    first = await store.acquire(make_request("a", "172.16.0.1"))
    clock.now += 50
    second = await store.acquire(make_request("a", "172.16.0.2", "10.5.9.0/24"))
    assert second.name == first.name
    assert str(second.subnets[0].public_address) == "172.16.0.2"
    assert second.expires_at == 1_000_151.0


async def test_the_watch_starts_with_everything_and_goes_on_without_a_gap(store: EmbeddedStore) -> None:
    a = await store.acquire(make_request("a", "172.16.0.1"))
    events = store.watch()
    assert await anext(events) == Snapshot(by_name(a), SMALL)
    b = await store.acquire(make_request("b", "172.16.0.2"))
    await store.release("a", a.name)
    assert await anext(events) == Changed((Upserted(b), Removed(a.name)), released=frozenset({a.name}))
    waiting = asyncio.ensure_future(anext(events))
    await asyncio.sleep(0)
    c = await store.acquire(make_request("c", "172.16.0.3"))
    assert await waiting == Changed((Upserted(c),))


async def test_renewing_gives_the_full_time_again(store: EmbeddedStore, clock: Clock) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    clock.now += 99
    assert (await store.renew("a", lease.name)).expires_at == 1_000_200.0
    clock.now += 99
    assert (await store.renew("a", lease.name)).name == lease.name


async def test_renewing_what_is_not_held_is_not_found(store: EmbeddedStore, clock: Clock) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    for node, name in (("b", lease.name), ("a", "10.5.2.0-24"), ("a", "")):
        with pytest.raises(NotFound, match="acquire again"):
            await store.renew(node, name)
    clock.now += 101
    with pytest.raises(NotFound, match="acquire again"):
        await store.renew("a", lease.name)


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


async def test_the_wait_is_no_longer_than_the_look_at_the_file(store: EmbeddedStore) -> None:
    assert store._seconds_to_wait() == 1.0
    await store.acquire(make_request("a", "172.16.0.1"))
    assert store._seconds_to_wait() == 1.0


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
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.001)
    with monkeypatch.context() as full:
        full.setattr(Database, "write", lambda *_: _fail(None, None))
        clock.now += DAY
        events = reopen().watch()
        assert await anext(events) == Snapshot(by_name(lease), SMALL)
        assert await anext(events) == StoreStatus("embedded", False, "the disk is full")
    assert await anext(events) == StoreStatus("embedded", True)
    assert await anext(events) == Changed((Upserted(lease.with_time(1_086_461.0)),))


def _fail(put: object, delete: object) -> None:
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


async def test_releasing_is_idempotent_and_only_for_the_holder(store: EmbeddedStore) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    await store.release("b", lease.name)
    assert await store.renew("a", lease.name)
    for _ in range(2):
        await store.release("a", lease.name)
    with pytest.raises(NotFound):
        await store.renew("a", lease.name)


async def test_a_reservation_is_kept_through_acquire_renew_and_release(store: EmbeddedStore, clock: Clock) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    store._write(put=[replace(lease, reserved=True, expires_at=None)])
    taken = await store.acquire(make_request("a", "172.16.0.1"))
    clock.now += 10_000
    assert (await store.renew("a", lease.name)) == taken
    assert (taken.reserved, taken.expires_at) == (True, None)
    await store.release("a", lease.name)
    events = store.watch()
    snapshot = await anext(events)
    assert isinstance(snapshot, Snapshot)
    left = snapshot.leases[lease.name]
    assert (left.node, left.reserved, left.addresses) == ("a", True, ()), (
        "it stays the node's, and nobody sends there"
    )
    assert (await store.acquire(make_request("b", "172.16.0.1"))).name == "10.5.2.0-24"


async def test_without_a_network_there_is_no_lease_and_the_reason_is_told(reopen: Open, config: Path) -> None:
    write(config, "")
    store = reopen()
    with pytest.raises(NotYet, match="not valid JSON"):
        await store.acquire(make_request("a", "172.16.0.1"))
    events = store.watch()
    snapshot = await anext(events)
    assert isinstance(snapshot, Snapshot)
    assert (snapshot.network, snapshot.network_error != "") == (None, True)
    write(config, SMALL_JSON)
    assert await anext(events) == Changed(network=SMALL)
    assert await store.acquire(make_request("a", "172.16.0.1"))


async def test_the_network_may_change_and_a_broken_one_is_only_told(store: EmbeddedStore, config: Path) -> None:
    events = store.watch()
    await anext(events)
    write(config, "{")
    broken = await anext(events)
    assert isinstance(broken, Changed)
    assert broken.network is None
    assert "not valid JSON" in broken.network_error
    assert await store.acquire(make_request("a", "172.16.0.1")), "the last good one is in force"
    write(config, NETWORK_JSON)
    event = await anext(events)
    assert isinstance(event, Changed)
    assert event.network == NETWORK


async def test_a_lease_outside_of_a_changed_network_is_given_up(store: EmbeddedStore, config: Path) -> None:
    old = await store.acquire(make_request("a", "172.16.0.1"))
    write(config, SMALL_JSON.replace("10.5", "10.6"))
    events = store.watch()
    await anext(events)
    await anext(events)
    new = await store.acquire(make_request("a", "172.16.0.1"))
    assert new.name == "10.6.1.0-24"
    assert await anext(events) == Changed((Removed(old.name), Upserted(new)), released=frozenset({old.name}))


async def test_a_row_that_is_no_lease_is_refused_and_the_others_serve(reopen: Open) -> None:
    store = reopen()
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    store._database._connection.execute("INSERT INTO lease VALUES ('foo', 'n', '{}', 0, NULL)")
    snapshot = await anext(reopen().watch())
    assert isinstance(snapshot, Snapshot)
    assert snapshot.leases == by_name(lease)
    assert set(snapshot.refused) == {"foo"}


async def test_a_full_disk_is_told_and_survived(
    store: EmbeddedStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_SECONDS", 0.0)
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    events = store.watch()
    await anext(events)
    connection = store._database._connection
    connection.execute("CREATE TEMP TRIGGER full BEFORE DELETE ON lease BEGIN SELECT RAISE(ABORT, 'full'); END")
    clock.now += 1000
    event = await anext(events)
    assert isinstance(event, StoreStatus)
    assert not event.connected
    assert "full" in event.error
    with pytest.raises(Unavailable):
        await store.acquire(make_request("a", "172.16.0.1"))
    connection.execute("DROP TRIGGER full")
    assert await anext(events) == StoreStatus("embedded", True)
    assert await anext(events) == Changed((Removed(lease.name),))
