"""Who is woken by what happens, and who sleeps on: what nobody sees from outside but in the time that it takes."""

import asyncio

from flannelette.services.core.leases.table import StoreStatus, Upserted
from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.watch import Broker
from tests.examples.leases import NETWORK, by_name, make_lease
from tests.services.lease import listing, news
from tests.stores.played import settle


async def test_a_lease_that_nobody_holds_wakes_nobody_who_waits_for_what_concerns_all() -> None:
    broker = Broker("test", epoch="e")
    broker.take(listing(by_name(make_lease(1)), NETWORK))
    waiting = asyncio.ensure_future(broker.notifier.next(""))
    await settle()
    broker.take(news(Upserted(make_lease(2, node="")), Upserted(make_lease(1, node=""))))
    await settle()
    assert not waiting.done()
    broker.take(StoreStatus("test", False, "away"))
    await asyncio.wait_for(waiting, 5)


async def test_a_node_that_comes_or_goes_wakes_who_waits_and_is_not_missed_by_who_looks_late() -> None:
    connected_nodes = ConnectedNodes()
    waiting = asyncio.create_task(connected_nodes.changed_since(0))
    await asyncio.sleep(0)
    assert not waiting.done()
    with connected_nodes.stream("node1"):
        assert await waiting == 1
        assert await connected_nodes.changed_since(0) == 1
        late = asyncio.create_task(connected_nodes.changed_since(1))
        await asyncio.sleep(0)
        assert not late.done()
    assert await late == 2
