"""A lease that is taken from its node: the node's holder hears of it and has its subnet again, if it is free."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from itertools import product

import pytest

from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.leases.table import Table
from flannelette.services.dataplane.events import NodeJournal
from flannelette.services.dataplane.node.lease_renewer import LeaseRenewer
from flannelette.services.lease.stores.etcd.client import EtcdClient
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from flannelette.services.lease.stores.etcd.values import Delete, Item, Put, Transaction, Write
from tests.etcd.keys import CONFIG_PUT, PREFIX, QUICK, item_at, wants, write
from tests.etcd.server import EtcdServer
from tests.patience import PATIENCE
from tests.services.follower import Follower, following


@dataclass
class Calls:
    """A lease service's calls, without a lease service."""

    store: EtcdStore
    is_reached: asyncio.Event = field(default_factory=asyncio.Event)

    async def acquire(self, request: LeaseRequest) -> Lease:
        await self.is_reached.wait()
        return await self.store.acquire(request)

    async def renew(self, name: str) -> Lease:
        return await self.store.renew("n1", name)


@dataclass
class Scene:
    server: EtcdServer
    store: EtcdStore
    renewer: LeaseRenewer
    seen: Follower
    client: EtcdClient
    calls: Calls

    async def item(self, kind: str, lease: Lease) -> Item:
        item = await item_at(self.client, f"{PREFIX}/{kind}/{lease.name}".encode())
        assert item
        return item

    async def write(self, *writes: Write) -> None:
        assert await self.client.transact(Transaction((), writes))

    async def until_held(self, but: Lease | None = None) -> Lease:
        """The lease, once the table shows it as the holder has it; another than that one."""
        async with asyncio.timeout(PATIENCE):
            while True:
                held = self.renewer.lease
                shown = self.seen.leases.get(held.name) if held else None
                if held and held is not but and not self.renewer.reason and shown and shown.node == "n1":
                    return held
                await asyncio.sleep(0.01)


@pytest.fixture
async def scene(own_etcd: EtcdServer) -> AsyncIterator[Scene]:
    await write(own_etcd, CONFIG_PUT)
    settings = EtcdSettings((own_etcd.endpoint,))
    store, client = EtcdStore(settings, timing=QUICK), EtcdClient(settings, QUICK, "test")
    calls = Calls(store)
    calls.is_reached.set()
    holder = LeaseRenewer(calls, 60, lambda: None, NodeJournal())
    async with following(store) as seen, observing(holder, seen):
        yield Scene(own_etcd, store, holder, seen, client, calls)
    await client.close()
    await store.close()


@asynccontextmanager
async def observing(holder: LeaseRenewer, seen: Follower) -> AsyncIterator[None]:
    """The holder runs, and looks at the table as the dataplane does: again and again."""

    async def look() -> None:
        while True:
            holder.observe(Table(dict(seen.leases), synced=True))
            await asyncio.sleep(0.01)

    tasks = [asyncio.create_task(holder.run()), asyncio.create_task(look())]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert all(task.cancelled() for task in tasks)


async def delete_key(scene: Scene, lease: Lease) -> None:
    await scene.write(Delete((await scene.item("subnets", lease)).key))


async def let_it_run_out(scene: Scene, lease: Lease) -> None:
    await scene.client.revoke((await scene.item("subnets", lease)).etcd_lease)


async def remove_holder(scene: Scene, lease: Lease) -> None:
    await scene.write(Delete((await scene.item("holders", lease)).key))


async def change_holder(scene: Scene, lease: Lease) -> None:
    item = await scene.item("holders", lease)
    await scene.write(Put(item.key, b'{"node":"n1","public_ip":"10.99.0.77","public_ipv6":""}', item.etcd_lease))


Revocation = Callable[[Scene, Lease], Awaitable[None]]


@pytest.mark.parametrize(
    ("reserved", "revoke"),
    [  # a reservation never runs out
        *product([False], [delete_key, let_it_run_out, remove_holder, change_holder]),
        *product([True], [delete_key, remove_holder, change_holder]),
    ],
)
async def test_a_revoked_lease_is_acquired_again_with_its_subnet(
    scene: Scene, revoke: Revocation, reserved: bool
) -> None:
    if reserved:
        await scene.store.reserve([ip_network("10.5.230.0/24")], "n1")
    scene.renewer.set_request(wants("n1"))
    lease = await scene.until_held()
    assert lease.reserved is reserved
    await scene.seen.until(lambda f: f.nodes == {lease.name: "n1"})
    await asyncio.sleep(0.05)  # the holder has seen it, so that its absence means something
    await revoke(scene, lease)
    again = await scene.until_held(but=lease)
    assert again.name == lease.name
    assert again.reserved is (reserved and revoke is not delete_key)


async def test_a_revoked_lease_whose_subnet_went_to_another_is_replaced(scene: Scene) -> None:
    scene.renewer.set_request(wants("n1"))
    lease = await scene.until_held()
    await asyncio.sleep(0.05)
    item = await scene.item("subnets", lease)
    scene.calls.is_reached.clear()
    await scene.store.release("n1", lease.name)
    await scene.write(Put(item.key, b'{"PublicIP":"10.99.0.77","PublicIPv6":null}'))  # a flanneld is faster
    scene.calls.is_reached.set()
    again = await scene.until_held(but=lease)
    assert again.name != lease.name
    assert scene.seen.nodes == {lease.name: "", again.name: "n1"}
