"""A prefix of an etcd, the stores on it, and what a test asks them for."""

import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.leases.lease import BackendData, FamilyRequest, LeaseRequest
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore
from flannelette.services.lease.stores.etcd.values import Delete, Item, Put, Transaction, Write
from tests.etcd.keys import item_at
from tests.etcd.server import EtcdServer

VXLAN = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'
HOST_GW = '{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}'


@dataclass
class Prefix:
    """A prefix in a real etcd, looked at and written to as etcdctl or a flanneld would."""

    settings: EtcdSettings
    client: EtcdClient

    async def put(self, name: str, value: str, etcd_lease: int = 0) -> None:
        await self.write(Put(self.key(name), value.encode(), etcd_lease))

    async def put_all(self, values: Mapping[str, str]) -> None:
        """In one revision."""
        await self.write(*(Put(self.key(name), value.encode()) for name, value in values.items()))

    async def delete(self, name: str) -> None:
        await self.write(Delete(self.key(name)))

    async def write(self, *writes: Write) -> None:
        assert await self.client.transact(Transaction((), writes))

    async def get(self, name: str) -> Item | None:
        return await item_at(self.client, self.key(name))

    async def values(self) -> dict[str, str]:
        pages = [page async for page in self.client.pages(self.key(""))]
        return {
            i.key.decode().removeprefix(f"{self.settings.prefix}/"): i.value.decode() for p in pages for i in p.items
        }

    async def flannelds_lease(self, seconds: int = 86_400) -> int:
        number = uuid.uuid4().int >> 66
        await self.client.grant(number, seconds)
        return number

    def key(self, name: str) -> bytes:
        return f"{self.settings.prefix}/{name}".encode()

    def store(self, lease_seconds: int = 86_400) -> EtcdStore:
        return EtcdStore(self.settings, lease_seconds=lease_seconds)


@asynccontextmanager
async def prefix_of(etcd: EtcdServer) -> AsyncIterator[Prefix]:
    """A fresh one, with a vxlan network."""
    settings = EtcdSettings((etcd.endpoint,), f"/{uuid.uuid4().hex}")
    made = Prefix(settings, EtcdClient(settings, Timing(), "test"))
    await made.put("config", VXLAN)
    yield made
    await made.client.close()


@pytest.fixture
async def prefix(etcd: EtcdServer) -> AsyncIterator[Prefix]:
    """A fresh one."""
    async with prefix_of(etcd) as made:
        yield made


def asks(address: str, data: BackendData | None = None, previous: str = "", node: str = "n1") -> LeaseRequest:
    part = FamilyRequest(ip_address(address), data, ip_network(previous) if previous else None)
    return LeaseRequest(node, "vxlan" if data else "host-gw", (part,))
