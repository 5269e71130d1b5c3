"""When the lease service is ready: a complete table that follows the store, and a network to lease from."""

from contextlib import suppress

from services.core.errors import Unavailable
from services.core.table import Table
from services.lease.broker import Broker
from services.runtime.health import Health


async def keep_health(broker: Broker, health: Health) -> None:
    """Follows the table until the broker is stopped."""
    with suppress(Unavailable):
        while True:
            show(broker.table, health)
            await broker.signals.next("")  # no node is called that: only what concerns all, and never a lease alone


def show(table: Table, health: Health) -> None:
    """Says what is missing. Without any network nobody gets a lease: not ready; with the last good one it is."""
    store = table.store
    assert store is not None  # noqa: S101 - the broker's always has one
    if not store.connected:
        health.set("store", f"the {store.kind} store is away: {store.error}")
    elif not table.synced:
        health.set("store", f"the leases of the {store.kind} store have not been read yet")
    else:
        health.set("store")
    health.set("network", "" if table.network else table.network_error or "the network is not known yet")
