"""A network of flannelds in a real etcd, a lease service that follows it, and what its subscribers know."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.leases.table import Table
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.values import Put, Transaction
from tests.etcd.server import EtcdServer
from tests.examples.leases import SMALL_JSON
from tests.services.lease import ServiceProcess, next_step, stub_of
from tests.waiting import eventually

NAMES = [f"10.5.{number}.0-24" for number in range(1, 21)]
LONG = 600.0
"""Seconds to a second listing that no test waits for."""


def value(number: int) -> str:
    """What a flanneld would write."""
    data = f'{{"VNI":1,"VtepMAC":"02:00:00:00:00:{number:02x}"}}'
    return f'{{"PublicIP":"172.16.0.{number}","PublicIPv6":null,"BackendType":"vxlan","BackendData":{data}}}'


def lease_to_ask_for(node: str, address: str, previous: str = "") -> pb.AcquireLeaseRequest:
    subnet = pb.Subnet(cidr=previous, public_address=address)
    return pb.AcquireLeaseRequest(node=node, backend_type="host-gw", subnets=[subnet])


class Network:
    """A network of flannelds in an etcd: nobody here renews or takes anything again."""

    def __init__(self, etcd: EtcdServer) -> None:
        self.etcd = etcd
        self.prefix = f"/{uuid.uuid4().hex}"

    async def fill(self) -> None:
        texts = {"config": SMALL_JSON, **{f"subnets/{name}": value(n) for n, name in enumerate(NAMES, start=1)}}
        puts = tuple(Put(f"{self.prefix}/{key}".encode(), text.encode()) for key, text in texts.items())
        client = EtcdClient(EtcdSettings((self.etcd.endpoint,), self.prefix), Timing(), "test")
        await client.transact(Transaction((), puts))
        await client.close()

    def put(self, key: str, text: str) -> None:
        self.etcd.etcdctl("put", f"{self.prefix}/{key}", text)

    def delete(self, key: str, *options: str) -> None:
        self.etcd.etcdctl("del", f"{self.prefix}/{key}", *options)

    @property
    def leases(self) -> set[str]:
        return {key for key in self.keys if key.startswith("subnets/")}

    @property
    def keys(self) -> set[str]:
        listed = self.etcd.etcdctl("get", "--keys-only", "--prefix", f"{self.prefix}/")
        return {key.removeprefix(f"{self.prefix}/") for key in listed.split()} - {"released"}


class Client:
    """A subscriber, and what it knows."""

    def __init__(self, stub: lease_pb2_grpc.LeaseServiceStub) -> None:
        self.stub = stub
        self.table = Table()
        self.lost: set[str] = set()
        """Leases that were ever removed."""

    async def follow(self) -> None:
        call = self.stub.WatchLeases(pb.WatchLeasesRequest())
        while True:
            before = set(self.table.leases)
            self.table.fold(await next_step(call))
            self.lost |= before - set(self.table.leases)

    async def until_quarantined(self, key: str) -> pb.QuarantinedKey:
        answer = await eventually(self._quarantine, lambda answer: key in [found.key for found in answer.keys])
        return next(found for found in answer.keys if found.key == key)

    async def until_none_quarantined(self) -> None:
        await eventually(self._quarantine, lambda answer: not answer.keys)

    async def until_held(self, count: int) -> pb.ListQuarantineResponse:
        return await eventually(self._quarantine, lambda answer: len(answer.held_removals) == count)

    async def until_known(self, count: int) -> None:
        await eventually(lambda: self.table, lambda table: len(table.leases) == count and table.synced)

    async def _quarantine(self) -> pb.ListQuarantineResponse:
        answer: pb.ListQuarantineResponse = await self.stub.ListQuarantine(pb.ListQuarantineRequest())
        return answer


@asynccontextmanager
async def watching(
    directory: Path, network: Network, seconds: float = LONG, known: int = len(NAMES)
) -> AsyncIterator[Client]:
    store = ("--store=etcd", f"--etcd-endpoints={network.etcd.endpoint}", f"--etcd-prefix={network.prefix}")
    with ServiceProcess(directory, "--central", *store, f"--guard-seconds={seconds}") as process:
        async with stub_of(process.address) as stub:
            client = Client(stub)
            task = asyncio.create_task(client.follow())
            await client.until_known(known)
            try:
                yield client
            finally:
                task.cancel()
                await asyncio.wait([task])
        process.terminate()


@pytest.fixture
async def network(etcd: EtcdServer) -> Network:
    """One of twenty nodes."""
    network = Network(etcd)
    await network.fill()
    return network
