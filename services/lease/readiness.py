"""When the lease service is ready: a complete table that follows the store, and a network to lease from."""

import asyncio

from services.core.table import Table
from services.lease.broker import Broker
from services.runtime.health import Health
from services.runtime.process import Process


async def keep_health(broker: Broker, process: Process) -> None:
    """Follows the broker; when the process stops, ends the streams."""
    stopping = asyncio.create_task(process.stopping.wait())
    try:
        while not stopping.done():
            show(broker.table, process.health)
            news = asyncio.create_task(broker.signals.next())
            await asyncio.wait((stopping, news), return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
    finally:
        stopping.cancel()
    broker.stop()


def show(table: Table, health: Health) -> None:
    """Without any network nobody can get a lease, so that is not ready; with the last good one it is."""
    store = table.store
    assert store is not None  # noqa: S101 - the broker's always has one
    if not store.connected:
        health.set("store", f"the {store.kind} store is away: {store.error}")
    elif not table.synced:
        health.set("store", f"the leases of the {store.kind} store have not been read yet")
    else:
        health.set("store")
    health.set("network", "" if table.network else table.network_error or "the network is not known yet")
