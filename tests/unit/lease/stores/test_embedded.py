"""What only the embedded store has: its files. The rest is in tests/contract/lease/test_store_contract.py."""

from pathlib import Path

import pytest

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.table import Removed, StoreStatus
from flannelette.services.lease.stores import embedded as module
from flannelette.services.lease.stores.embedded import EmbeddedStore
from flannelette.services.lease.stores.store import Changed, Snapshot
from tests.examples.leases import by_name, make_request
from tests.stores.embedded import Clock, Open


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_while_the_network_file_is_broken_the_last_good_one_is_in_force(
    store: EmbeddedStore, config: Path
) -> None:
    events = store.watch()
    await anext(events)
    write(config, "{")
    broken = await anext(events)
    assert isinstance(broken, Changed)
    assert broken.network is None
    assert "not valid JSON" in broken.network_error
    assert await store.acquire(make_request("a", "172.16.0.1"))


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
