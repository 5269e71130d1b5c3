"""What tests of the etcd store have in common: keys as a flanneld writes them, a store that soon gives up."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from ipaddress import ip_address
from typing import Final

from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from flannelette.services.lease.stores.etcd.values import Delete, Item, Put, Transaction, Write
from tests.etcd.server import EtcdServer
from tests.patience import PATIENCE

QUICK: Final = Timing(call=2.0, ping=0.5, pong=0.5, retry_first=0.05, retry_most=0.2, retry_not_allowed=0.2)
CONFIG: Final = '{"Network":"10.5.0.0/16","SubnetMin":"10.5.224.0","Backend":{"Type":"udp"}}'
"""A network whose subnets are drawn above those that tests write by hand (`name`), so that none is drawn twice."""
PREFIX: Final = "/coreos.com/network"
CONFIG_PUT: Final = Put(f"{PREFIX}/config".encode(), CONFIG.encode())


def wants(node: str = "n1", address: str = "10.99.0.1") -> LeaseRequest:
    """A node asks for a lease in the network of CONFIG."""
    return LeaseRequest(node, "", (FamilyRequest(ip_address(address)),))


async def item_at(client: EtcdClient, key: bytes) -> Item | None:
    """The key, if it exists; linearizable."""
    items = {item.key: item async for page in client.pages(key) for item in page.items}
    return items.get(key)


def name(number: int) -> str:
    return f"10.5.{number}.0-24"


def lease_put(number: int, address: str = "") -> Put:
    """A flanneld's lease, without end."""
    value = f'{{"PublicIP":"{address or f"10.99.0.{number}"}","PublicIPv6":null}}'
    return Put(f"{PREFIX}/subnets/{name(number)}".encode(), value.encode())


def lease_delete(number: int) -> Delete:
    return Delete(lease_put(number).key)


def put(key: str, value: str) -> Put:
    """Any key."""
    return Put(key.encode(), value.encode())


async def write(server: EtcdServer, *writes: Write) -> None:
    """Each write in a revision of its own."""
    client = EtcdClient(EtcdSettings((server.endpoint,)), QUICK, "test")
    for each in writes:
        assert await client.transact(Transaction((), (each,)))
    await client.close()


@asynccontextmanager
async def opened(
    *endpoints: str, settings: EtcdSettings | None = None, timing: Timing = QUICK
) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(settings or EtcdSettings(endpoints), timing=timing)
    yield store
    await store.close()


async def progress_of_another_watch(server: EtcdServer, times: int) -> None:
    """Returns when etcd has told a watch of ours so often how far it is, and so every other one too."""
    client = EtcdClient(EtcdSettings((server.endpoint,)), QUICK, "test")
    async for page in client.pages(b"/quiet/"):
        position = page.position
    told = 0
    async with aclosing(client.watch(b"/quiet/", position)) as batches, asyncio.timeout(PATIENCE):
        async for _ in batches:
            told += 1
            if told > times:
                break
    await client.close()
