"""WatchEvents of the lease service, as a process: what befalls leases, nodes and the store, also over a restart."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.etcd.server import EtcdServer
from tests.examples.leases import make_request
from tests.flannel.network import Network
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import eventually


async def events(stub: Any, **request: Any) -> list[pb.WatchEventsResponse]:
    call = stub.WatchEvents(pb.WatchEventsRequest(no_follow=True, **request), timeout=PATIENCE, wait_for_ready=True)
    return [event async for event in call]


def names(told: Iterable[pb.WatchEventsResponse]) -> list[str]:
    return [pb.EventKind.Name(event.kind).removeprefix("EVENT_KIND_") for event in told]


async def until(stub: Any, kind: "pb.EventKind.ValueType", count: int = 1) -> list[pb.WatchEventsResponse]:
    """The events of a kind, once there are so many."""
    return await eventually(lambda: events(stub, kinds=[kind]), lambda told: len(told) >= count)


async def told_of_store(stub: Any, what: str, after: str = "") -> pb.WatchEventsResponse:
    """The first event that says this, once it is there."""
    told = await eventually(
        lambda: events(stub, kinds=[pb.EVENT_KIND_STORE], after=after),
        lambda told: what in [event.what for event in told],
    )
    return next(event for event in told if event.what == what)


async def acquire(stub: Any, node: str, address: str) -> pb.Lease:
    request = request_to_proto(make_request(node, address))
    return (await stub.AcquireLease(request, wait_for_ready=True, timeout=PATIENCE)).lease  # type: ignore[no-any-return]


def start(directory: Path, config: Path) -> ServiceProcess:
    return ServiceProcess(directory, f"--net-config-path={config}", f"--store-file={directory}/leases.db")


async def test_a_life_is_in_the_journal_and_a_restart_keeps_it(tmp_path: Path, config: Path) -> None:
    with start(tmp_path, config) as process:
        async with stub_of(process.address) as stub:
            lease = await acquire(stub, "a", "172.16.0.1")
            call = stub.WatchLeases(pb.WatchLeasesRequest(node="a", view=pb.VIEW_ALL))
            await until(stub, pb.EVENT_KIND_NODE_CONNECTED)
            call.cancel()
            await until(stub, pb.EVENT_KIND_NODE_DISCONNECTED)
            await acquire(stub, "a", "172.16.0.9")
            await stub.ReleaseLease(pb.ReleaseLeaseRequest(node="a", name=lease.name))
            for _ in range(3):
                with suppress(grpc.aio.AioRpcError):
                    await stub.RenewLease(pb.RenewLeaseRequest(node="a", name=lease.name))
            await acquire(stub, "a", "172.16.0.1")
            await until(stub, pb.EVENT_KIND_LEASE_RENEWED)
            of_a = await events(stub, name="a")
            assert names(of_a) == [
                "LEASE_ACQUIRED", "NODE_CONNECTED", "NODE_DISCONNECTED", "LEASE_CHANGED", "LEASE_REMOVED",
                "LEASE_REFUSED", "LEASE_ACQUIRED", "LEASE_RENEWED",
            ] or names(of_a)[-2:] == ["LEASE_RENEWED", "LEASE_ACQUIRED"]  # fmt: skip
            cidr = lease.subnets[0].cidr
            assert of_a[0].what == f"lease acquired: a, {cidr} at 172.16.0.1"
            assert list(of_a[0].leases) == [pb.LeaseName(name=lease.name, node="a")]
            assert of_a[3].cause == f"was a, {cidr} at 172.16.0.1"
            assert of_a[4].cause == "released by its node or an operator"
            assert "acquire" in of_a[5].cause
            before = await events(stub)
            assert names(before)[0] == "SERVICE_STARTED"
            assert {"STORE", "NETWORK", "READINESS"} <= set(names(before))
            assert all(event.cursor for event in of_a)
        assert process.terminate() == 0
    with start(tmp_path, config) as process:
        async with stub_of(process.address) as stub:
            await until(stub, pb.EVENT_KIND_SERVICE_STARTED, 2)
            told = await events(stub)
            assert told[: len(before)] == before
            later = await events(stub, after=before[-1].position)
            assert names(later)[0] == "SERVICE_STARTED"
            assert not any(event.missed for event in told)
        process.kill()


async def test_who_follows_gets_what_comes_and_the_end_of_the_service(tmp_path: Path, config: Path) -> None:
    with start(tmp_path, config) as process:
        async with stub_of(process.address) as stub:
            await until(stub, pb.EVENT_KIND_READINESS)
            call: Any = stub.WatchEvents(pb.WatchEventsRequest(kinds=[pb.EVENT_KIND_LEASE_ACQUIRED]))
            await acquire(stub, "a", "172.16.0.1")
            assert (await asyncio.wait_for(call.read(), PATIENCE)).kind == pb.EVENT_KIND_LEASE_ACQUIRED
            assert process.terminate() == 0
            with pytest.raises(grpc.aio.AioRpcError) as ended:
                await asyncio.wait_for(call.read(), PATIENCE)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_an_etcd_that_goes_and_keys_that_are_none_leave_their_traces(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    network = Network(own_etcd)
    await network.fill()
    arguments = (
        "--store=etcd",
        "--central",
        f"--etcd-endpoints={own_etcd.endpoint}",
        f"--etcd-prefix={network.prefix}",
    )
    with ServiceProcess(tmp_path, *arguments) as process:
        async with stub_of(process.address) as stub:
            read = await told_of_store(stub, "the etcd store was read: 20 leases")
            own_etcd.kill()
            away = await told_of_store(
                stub, "the etcd store is away; the last leases stay in force", after=read.position
            )
            assert away.cause
            own_etcd.start()
            await told_of_store(stub, "the etcd store answers", after=away.position)
