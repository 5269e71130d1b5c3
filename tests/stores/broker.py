"""A broker that has its table, for the tests of those who watch it."""

import asyncio

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import StoreStatus
from flannelette.services.lease.stores.store import Snapshot
from flannelette.services.lease.watch.broker import Broker
from tests.examples.leases import NETWORK, by_name


def broker_with(*leases: Lease, most_entries: int = 100) -> Broker:
    broker = Broker("test", epoch="e", most_entries=most_entries)
    broker.take(StoreStatus("test", True))
    broker.take(Snapshot(by_name(*leases), NETWORK))
    return broker


async def settle() -> None:
    """Whatever waits for nothing but its turn has had it."""
    for _ in range(8):
        await asyncio.sleep(0)
