"""The embedded store: calls, and what it says happened."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from services.core.errors import NotFound, NotYet, Unavailable
from services.core.leases.table import Removed, StoreStatus, Upserted
from services.lease.stores.embedded import store as module
from services.lease.stores.embedded.store import EmbeddedStore
from services.lease.stores.store import Changed, Snapshot
from tests.examples.leases import NETWORK, NETWORK_JSON, SMALL, SMALL_JSON, by_name, make_request
from tests.stores.embedded import Clock, Open


def write(path: Path, text: str) -> None:
    path.write_text(text)


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


async def test_renewing_what_is_not_held_is_not_found(store: EmbeddedStore, clock: Clock) -> None:
    lease = await store.acquire(make_request("a", "172.16.0.1"))
    for node, name in (("b", lease.name), ("a", "10.5.2.0-24"), ("a", "")):
        with pytest.raises(NotFound, match="acquire a lease again"):
            await store.renew(node, name)
    clock.now += 101
    with pytest.raises(NotFound, match="acquire a lease again"):
        await store.renew("a", lease.name)


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


async def test_hole_06_a_lease_outside_of_a_changed_network_is_kept_until_it_is_released(
    store: EmbeddedStore, config: Path
) -> None:
    old = await store.acquire(make_request("a", "172.16.0.1"))
    write(config, SMALL_JSON.replace("10.5", "10.6"))
    events = store.watch()
    await anext(events)
    await anext(events)
    assert (await store.acquire(make_request("a", "172.16.0.1"))).name == old.name
    await store.release("a", old.name)
    new = await store.acquire(make_request("a", "172.16.0.1"))
    assert new.name == "10.6.1.0-24"
    told = await anext(events)
    assert isinstance(told, Changed)
    assert told.changes[-2:] == (Removed(old.name), Upserted(new))
    assert told.released == {old.name}


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
    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.0)
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
