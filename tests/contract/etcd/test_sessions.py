"""Who is alive: sessions in a real etcd, and what they mean for two nodes with one address."""

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import NotYet
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest
from flannelette.services.lease.progress.connected import ConnectedNodes
from flannelette.services.lease.stores.etcd.rpc.client import EtcdClient
from flannelette.services.lease.stores.etcd.rpc.members import Timing
from flannelette.services.lease.stores.etcd.rpc.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.rpc.values import Delete, Item, Put, Transaction
from flannelette.services.lease.stores.etcd.sessions import SessionTiming
from flannelette.services.lease.stores.etcd.store import EtcdStore
from tests.etcd.keys import item_at
from tests.etcd.server import EtcdServer
from tests.patience import PATIENCE
from tests.services.follower import following
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import eventually

CONFIG = b'{"Network":"10.5.0.0/16","Backend":{"Type":"host-gw"}}'
QUICK = Timing(retry_first=0.05, retry_most=0.2)


@dataclass
class Service:
    """A lease service as far as etcd can tell."""

    store: EtcdStore
    connected_nodes: ConnectedNodes = field(default_factory=ConnectedNodes)


@dataclass
class Cluster:
    settings: EtcdSettings
    client: EtcdClient

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

    async def session(self, node: str) -> Item | None:
        return await item_at(self.client, f"{self.settings.prefix}/sessions/{node}".encode())

    async def until(self, node: str, *, there: bool, not_on: int = 0) -> Item | None:
        """The session as soon as it is there (on another etcd lease) or not: a call may take 10 s, and a pause 5."""
        return await eventually(
            lambda: self.session(node),
            lambda item: (item is not None) is there and (item is None or item.etcd_lease != not_on),
        )


@pytest.fixture
async def cluster(etcd: EtcdServer) -> AsyncIterator[Cluster]:
    settings = EtcdSettings((etcd.endpoint,), f"/{uuid.uuid4().hex}")
    client = EtcdClient(settings, QUICK, "test")
    assert await client.transact(Transaction((), (Put(f"{settings.prefix}/config".encode(), CONFIG),)))
    yield Cluster(settings, client)
    await client.close()


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


def asks(node: str, address: str = "10.99.0.1") -> LeaseRequest:
    return LeaseRequest(node, "host-gw", (FamilyRequest(ip_address(address)),))


async def taken_over(store: EtcdStore, request: LeaseRequest) -> Lease:
    """The lease that it is given as soon as this store has heard, too, that the session is gone."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(NotYet):
                return await store.acquire(request)
            await asyncio.sleep(0.02)


async def test_a_session_is_there_while_the_dataplane_is_and_kept_on_one_etcd_lease(cluster: Cluster) -> None:
    async with running(cluster.service(lives=1)) as service:
        with connected(service, "n1"), connected(service, "n2"):
            first, second = await cluster.until("n1", there=True), await cluster.until("n2", there=True)
            assert first
            assert second
            assert first.etcd_lease == second.etcd_lease != 0
            await asyncio.sleep(1.5)  # longer than it would live
            assert await cluster.session("n1") == first, "kept alive, not granted anew, not written again"
        await cluster.until("n1", there=False)


async def test_a_session_outlives_a_short_absence(cluster: Cluster) -> None:
    async with running(cluster.service(linger=0.6)) as service:
        with connected(service, "n1"):
            first = await cluster.until("n1", there=True)
        await asyncio.sleep(0.3)
        with connected(service, "n1"):
            await asyncio.sleep(1)
            assert await cluster.session("n1") == first
        await cluster.until("n1", there=False)


async def test_a_session_moves_with_its_node_and_ends_with_a_killed_service(cluster: Cluster) -> None:
    async with running(cluster.service()) as other:
        with ExitStack() as streams:
            streams.enter_context(connected(other, "n3"))
            async with running(cluster.service(lives=1)) as service:
                with connected(service, "n1"), connected(service, "n2"):
                    await cluster.until("n2", there=True)
                    first = await cluster.until("n1", there=True)
                    assert first
                    streams.enter_context(connected(other, "n1"))
                    moved = await cluster.until("n1", there=True, not_on=first.etcd_lease)
            await cluster.until("n2", there=False)
            assert await cluster.session("n1") == moved
            assert await cluster.session("n3")


async def test_a_session_that_is_lost_with_its_etcd_lease_is_written_anew(cluster: Cluster) -> None:
    async with running(cluster.service(lives=2)) as service:
        with connected(service, "n1"):
            first = await cluster.until("n1", there=True)
            assert first
            await cluster.client.revoke(first.etcd_lease)
            await cluster.until("n1", there=False)
            assert await cluster.until("n1", there=True) != first


async def test_sessions_survive_an_outage_of_etcd(own_etcd: EtcdServer) -> None:
    settings = EtcdSettings((own_etcd.endpoint,), "/net")
    client = EtcdClient(settings, QUICK, "test")
    cluster = Cluster(settings, client)
    async with running(cluster.service(lives=1)) as service:
        with connected(service, "n1"):
            await cluster.until("n1", there=True)
            own_etcd.kill()
            await asyncio.sleep(1.5)
            own_etcd.start()
            await asyncio.sleep(1.5)
            assert await cluster.session("n1"), "etcd gives its leases their full time after an outage"
    await client.close()


async def test_two_nodes_with_one_address_are_refused_while_the_first_is_alive(cluster: Cluster) -> None:
    """flannel v0.28 lets them share a subnet. A regression test of defect 13 of flannel v0.28."""
    async with running(cluster.service()) as service, running(cluster.service()) as other:
        with connected(service, "n1"), connected(other, "n2"):
            await cluster.until("n1", there=True)
            lease = await service.store.acquire(asks("n1"))
            for _ in range(3):
                with pytest.raises(
                    NotYet, match=rf"n2 cannot have .* 10\.99\.0\.1: node n1 holds it .* {lease.name}"
                ):
                    await other.store.acquire(asks("n2"))
            assert (await service.store.acquire(asks("n1"))).name == lease.name


async def test_the_address_of_a_dead_node_is_taken_over_with_its_subnet(cluster: Cluster) -> None:
    async with running(cluster.service()) as service, running(cluster.service()) as other:
        with connected(service, "n1"):
            await cluster.until("n1", there=True)
            lease = await service.store.acquire(asks("n1"))
        await cluster.until("n1", there=False)
        taken = await taken_over(other.store, asks("n2"))
        assert (taken.name, taken.node) == (lease.name, "n2")


async def test_a_node_that_was_given_its_lease_a_moment_ago_is_alive_also_without_a_session(cluster: Cluster) -> None:
    """Its dataplane may just have come, or its lease service be of a version that keeps no sessions."""
    service = cluster.service(alive_seconds=1000)
    await service.store.acquire(asks("n1"))
    with pytest.raises(NotYet, match="node n1 holds it"):
        await service.store.acquire(asks("n2"))
    async with running(service):
        with pytest.raises(NotYet, match="node n1 holds it"):
            await service.store.acquire(asks("n2"))


async def test_a_session_that_comes_in_the_last_moment_counts(cluster: Cluster) -> None:
    """The take-over is decided before the session, and written after it: it must not happen."""
    service = cluster.service()
    async with running(service):
        await service.store.acquire(asks("n1"))
        transact = service.store._client.transact
        key = f"{cluster.settings.prefix}/sessions/n1".encode()

        async def slow(transaction: Transaction) -> int:
            if any(isinstance(write, Put) and b'"n2"' in write.value for write in transaction.writes):
                await cluster.client.transact(Transaction((), (Put(key, b"{}"),)))
            return await transact(transaction)

        service.store._client.transact = slow  # type: ignore[method-assign]  # the moment between look and write
        with pytest.raises(NotYet, match="node n1 holds it"):
            await service.store.acquire(asks("n2"))
        await cluster.client.transact(Transaction((), (Delete(key),)))


async def test_the_stream_of_a_dataplane_is_a_session_and_that_of_a_looker_on_is_none(
    tmp_path: Path, cluster: Cluster
) -> None:
    (endpoint,), prefix = cluster.settings.endpoints, cluster.settings.prefix
    flags = ("--store=etcd", "--central", f"--etcd-endpoints={endpoint}", f"--etcd-prefix={prefix}")
    with ServiceProcess(tmp_path, *flags) as process:
        async with stub_of(process.address) as stub:
            looker_on = stub.WatchLeases(pb.WatchLeasesRequest(node="n2", view=pb.VIEW_OWN))
            dataplane = stub.WatchLeases(pb.WatchLeasesRequest(node="n1", view=pb.VIEW_ALL))
            await looker_on.read()
            await dataplane.read()
            session = await cluster.until("n1", there=True)
            assert session
            assert session.value == b'{"service":"central"}'
            assert await cluster.session("n2") is None
        assert process.terminate() == 0
        assert await cluster.session("n1"), "it outlives a restart of the lease service"
