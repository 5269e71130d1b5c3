"""Who is alive: sessions in a real etcd, and what they mean for two nodes with one address."""

import asyncio
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import NotYet
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest
from tests.etcd.server import EtcdServer
from tests.etcd.sessions import Cluster, connected, running
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of


def asks(node: str, address: str = "10.99.0.1") -> LeaseRequest:
    return LeaseRequest(node, "host-gw", (FamilyRequest(ip_address(address)),))


async def taken_over(store: Any, request: LeaseRequest) -> Lease:
    """The lease that it is given as soon as this store has heard, too, that the session is gone."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with suppress(NotYet):
                lease: Lease = await store.acquire(request)
                return lease
            await asyncio.sleep(0.02)


async def test_a_session_is_there_while_the_dataplane_is_and_kept_on_one_etcd_lease(sessions: Cluster) -> None:
    async with running(sessions.service(lives=1)) as service:
        with connected(service, "n1"), connected(service, "n2"):
            first, second = await sessions.until("n1", there=True), await sessions.until("n2", there=True)
            assert first
            assert second
            assert first.etcd_lease == second.etcd_lease != 0
            await asyncio.sleep(1.5)  # longer than it would live
            assert await sessions.session("n1") == first, "kept alive, not granted anew, not written again"
        await sessions.until("n1", there=False)


async def test_a_session_outlives_a_short_absence(sessions: Cluster) -> None:
    async with running(sessions.service(linger=0.6)) as service:
        with connected(service, "n1"):
            first = await sessions.until("n1", there=True)
        await asyncio.sleep(0.3)
        with connected(service, "n1"):
            await asyncio.sleep(1)
            assert await sessions.session("n1") == first
        await sessions.until("n1", there=False)


async def test_a_session_moves_with_its_node_and_ends_with_a_killed_service(sessions: Cluster) -> None:
    async with running(sessions.service()) as other:
        with ExitStack() as streams:
            streams.enter_context(connected(other, "n3"))
            async with running(sessions.service(lives=1)) as service:
                with connected(service, "n1"), connected(service, "n2"):
                    await sessions.until("n2", there=True)
                    first = await sessions.until("n1", there=True)
                    assert first
                    streams.enter_context(connected(other, "n1"))
                    moved = await sessions.until("n1", there=True, not_on=first.etcd_lease)
            await sessions.until("n2", there=False)
            assert await sessions.session("n1") == moved
            assert await sessions.session("n3")


async def test_a_session_that_is_lost_with_its_etcd_lease_is_written_anew(sessions: Cluster) -> None:
    async with running(sessions.service(lives=2)) as service:
        with connected(service, "n1"):
            first = await sessions.until("n1", there=True)
            assert first
            await sessions.client.revoke(first.etcd_lease)
            await sessions.until("n1", there=False)
            assert await sessions.until("n1", there=True) != first


async def test_sessions_survive_an_outage_of_etcd(own_etcd: EtcdServer) -> None:
    sessions = Cluster.on(own_etcd, "/net")
    async with running(sessions.service(lives=1)) as service:
        with connected(service, "n1"):
            await sessions.until("n1", there=True)
            own_etcd.kill()
            await asyncio.sleep(1.5)
            own_etcd.start()
            await asyncio.sleep(1.5)
            assert await sessions.session("n1"), "etcd gives its leases their full time after an outage"
    await sessions.client.close()


async def test_two_nodes_with_one_address_are_refused_while_the_first_is_alive(sessions: Cluster) -> None:
    """flannel v0.28 lets them share a subnet. A regression test of defect 13 of flannel v0.28."""
    async with running(sessions.service()) as service, running(sessions.service()) as other:
        with connected(service, "n1"), connected(other, "n2"):
            await sessions.until("n1", there=True)
            lease = await service.store.acquire(asks("n1"))
            for _ in range(3):
                with pytest.raises(
                    NotYet, match=rf"n2 cannot have .* 10\.99\.0\.1: node n1 holds it .* {lease.name}"
                ):
                    await other.store.acquire(asks("n2"))
            assert (await service.store.acquire(asks("n1"))).name == lease.name


async def test_the_address_of_a_dead_node_is_taken_over_with_its_subnet(sessions: Cluster) -> None:
    async with running(sessions.service()) as service, running(sessions.service()) as other:
        with connected(service, "n1"):
            await sessions.until("n1", there=True)
            lease = await service.store.acquire(asks("n1"))
        await sessions.until("n1", there=False)
        taken = await taken_over(other.store, asks("n2"))
        assert (taken.name, taken.node) == (lease.name, "n2")


async def test_a_node_that_was_given_its_lease_a_moment_ago_is_alive_also_without_a_session(
    sessions: Cluster,
) -> None:
    """Its dataplane may just have come, or its lease service be of a version that keeps no sessions."""
    service = sessions.service(alive_seconds=1000)
    await service.store.acquire(asks("n1"))
    with pytest.raises(NotYet, match="node n1 holds it"):
        await service.store.acquire(asks("n2"))
    async with running(service):
        with pytest.raises(NotYet, match="node n1 holds it"):
            await service.store.acquire(asks("n2"))


async def test_a_session_that_comes_in_the_last_moment_counts(sessions: Cluster) -> None:
    """The take-over is decided before the session, and written after it: it must not happen."""
    service = sessions.service()
    async with running(service):
        await service.store.acquire(asks("n1"))

        async def come_back(values: bytes) -> None:
            if b'"n2"' in values:
                await sessions.put("sessions/n1", b"{}")

        service.before_each_write(come_back)
        with pytest.raises(NotYet, match="node n1 holds it"):
            await service.store.acquire(asks("n2"))
        await sessions.delete("sessions/n1")


async def test_the_stream_of_a_dataplane_is_a_session_and_that_of_a_looker_on_is_none(
    tmp_path: Path, sessions: Cluster
) -> None:
    with ServiceProcess(tmp_path, "--central", *sessions.flags) as process:
        async with stub_of(process.address) as stub:
            looker_on = stub.WatchLeases(pb.WatchLeasesRequest(node="n2", view=pb.VIEW_OWN))
            dataplane = stub.WatchLeases(pb.WatchLeasesRequest(node="n1", view=pb.VIEW_ALL))
            await looker_on.read()
            await dataplane.read()
            session = await sessions.until("n1", there=True)
            assert session
            assert session.value == b'{"service":"central"}'
            assert await sessions.session("n2") is None
        assert process.terminate() == 0
        assert await sessions.session("n1"), "it outlives a restart of the lease service"
