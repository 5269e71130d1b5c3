"""Lease services on one etcd, as far as etcd can tell: the sessions of the nodes that are connected to them."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from flannelette.services.lease.progress import ConnectedNodes
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.store import EtcdStore, SessionTiming
from flannelette.services.lease.stores.etcd.values import Delete, Item, Put, Transaction
from tests.etcd.keys import item_at
from tests.etcd.server import EtcdServer
from tests.services.follower import following
from tests.waiting import eventually

CONFIG: Final = b'{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}'
QUICK: Final = Timing(retry_first=0.05, retry_most=0.2)


@dataclass
class Service:
    """A lease service as far as etcd can tell."""

    store: EtcdStore
    connected_nodes: ConnectedNodes = field(default_factory=ConnectedNodes)

    def before_each_write(self, call: Callable[[bytes], Awaitable[None]]) -> None:
        """Calls this with all values, between the look and the write of each transaction."""
        transact = self.store._client.transact

        async def slow(transaction: Transaction) -> int:
            await call(b"".join(write.value for write in transaction.writes if isinstance(write, Put)))
            return await transact(transaction)

        self.store._client.transact = slow  # type: ignore[method-assign]  # the moment between look and write


@dataclass
class Cluster:
    settings: EtcdSettings
    client: EtcdClient

    @classmethod
    def on(cls, server: EtcdServer, prefix: str) -> "Cluster":
        settings = EtcdSettings((server.endpoint,), prefix)
        return cls(settings, EtcdClient(settings, QUICK, "test"))

    @property
    def flags(self) -> tuple[str, ...]:
        """Those of a lease service on it."""
        (endpoint,) = self.settings.endpoints
        return "--store=etcd", f"--etcd-endpoints={endpoint}", f"--etcd-prefix={self.settings.prefix}"

    def service(self, *, lives: int = 60, linger: float = 0.0, alive_seconds: float = 0.0) -> Service:
        connected_nodes = ConnectedNodes()
        store = EtcdStore(
            self.settings,
            connected_nodes=connected_nodes,
            alive_seconds=alive_seconds,
            timing=QUICK,
            session_timing=SessionTiming(lives, linger),
        )
        return Service(store, connected_nodes)

    async def put(self, key: str, value: bytes) -> None:
        assert await self.client.transact(Transaction((), (Put(self._key(key), value),)))

    async def delete(self, key: str) -> None:
        assert await self.client.transact(Transaction((), (Delete(self._key(key)),)))

    async def session(self, node: str) -> Item | None:
        return await item_at(self.client, self._key(f"sessions/{node}"))

    async def until(self, node: str, *, there: bool, not_on: int = 0) -> Any:
        """The session as soon as it is there (on another etcd lease) or not: a call may take 10 s, and a pause 5."""
        return await eventually(
            lambda: self.session(node),
            lambda item: (item is not None) is there and (item is None or item.etcd_lease != not_on),
        )

    def _key(self, name: str) -> bytes:
        return f"{self.settings.prefix}/{name}".encode()


@pytest.fixture
async def sessions(etcd: EtcdServer) -> AsyncIterator[Cluster]:
    """Under a prefix of its own."""
    made = Cluster.on(etcd, f"/{uuid.uuid4().hex}")
    await made.put("config", CONFIG)
    yield made
    await made.client.close()


@asynccontextmanager
async def running(service: Service) -> AsyncIterator[Service]:
    """The service watches and keeps sessions; on the way out it dies as by SIGKILL."""
    async with following(service.store):
        task = asyncio.create_task(service.store.keep_sessions())
        yield service
        task.cancel()
        await asyncio.wait([task])
    await service.store.close()


@contextmanager
def connected(service: Service, node: str) -> Iterator[None]:
    with service.connected_nodes.stream(node):
        yield
