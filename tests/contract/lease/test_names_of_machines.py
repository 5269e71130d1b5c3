"""Two machines with the name of one node: the first keeps its lease, the second is told what to do."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import NameTaken
from flannelette.services.core.leases.lease import LeaseRequest
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.etcd.server import EtcdServer
from tests.examples.leases import SMALL_JSON, make_request
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, next_step, stub_of
from tests.services.tiers import Tiers
from tests.stores.every import World, asks, told

HINT = r"another machine is node n1, .*10\.99\.0\.1 and is alive: give this one a name.*hostnamectl.*--node=.*release"


def on(machine: str, request: LeaseRequest) -> LeaseRequest:
    return replace(request, machine=machine)


async def test_a_second_machine_of_a_name_gets_nothing_and_the_first_loses_nothing(world: World) -> None:
    store = world.open()
    lease = await store.acquire(on("m1", asks(1)))
    for _ in range(3):
        with pytest.raises(NameTaken, match=HINT):
            await store.acquire(on("m2", asks(2, node="n1")))
        with pytest.raises(NameTaken, match=HINT):
            await store.renew("n1", lease.name, "m2")
        assert told(await store.renew("n1", lease.name, "m1")) == told(lease)
        assert told(await store.acquire(on("m1", asks(1)))) == told(lease)


async def test_a_machine_that_was_installed_anew_gets_its_subnet_when_its_predecessor_is_alive_no_more(
    world: World,
) -> None:
    lease = await world.open().acquire(on("m1", asks(1)))
    store = world.open(later=True)
    taken = await store.acquire(on("m2", asks(1)))
    assert taken.name == lease.name
    store = world.open()
    with pytest.raises(NameTaken, match=HINT):
        await store.acquire(on("m1", asks(1)))


async def test_a_release_frees_the_name_at_once(world: World) -> None:
    store = world.open()
    lease = await store.acquire(on("m1", asks(1)))
    await store.release("n1", lease.name)
    assert (await store.acquire(on("m2", asks(2, node="n1", previous="10.5.9.0/24")))).name == "10.5.9.0-24"
    with pytest.raises(NameTaken):
        await store.acquire(on("m1", asks(1)))


async def test_a_dataplane_without_a_token_is_the_node_by_its_name_alone_as_before(world: World) -> None:
    store = world.open()
    lease = await store.acquire(asks(1))
    assert (await store.acquire(on("m1", asks(1)))).name == lease.name, "the dataplane was upgraded"
    with pytest.raises(NameTaken):
        await store.acquire(on("m2", asks(1)))
    assert (await store.acquire(asks(1))).name == lease.name, "and downgraded"
    assert (await store.renew("n1", lease.name)).name == lease.name
    assert (await store.acquire(on("m2", asks(1)))).name == lease.name, "whose machine nobody knows"


async def test_a_machine_is_remembered_over_a_restart_of_the_lease_service(world: World) -> None:
    lease = await world.open().acquire(on("m1", asks(1)))
    store = world.open()
    with pytest.raises(NameTaken):
        await store.acquire(on("m2", asks(1)))
    assert (await store.acquire(on("m1", asks(1)))).name == lease.name


@pytest.fixture(params=["embedded", "etcd"])
def central(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ServiceProcess]:
    config = tmp_path / "net.json"
    config.write_text(SMALL_JSON)
    flags = [f"--net-config-path={config}", f"--store-file={tmp_path}/leases.db"]
    if request.param == "etcd":
        etcd: EtcdServer = request.getfixturevalue("own_etcd")
        etcd.etcdctl("put", "/coreos.com/network/config", SMALL_JSON)
        flags = ["--central", f"--etcd-endpoints={etcd.endpoint}"]
    with ServiceProcess(tmp_path, *flags) as process:
        yield process


@asynccontextmanager
async def dataplane(address: str, machine: str, node: str = "a") -> AsyncIterator[Any]:
    """The stream of a node's dataplane on this machine."""
    async with stub_of(address) as stub:
        call = stub.WatchLeases(pb.WatchLeasesRequest(node=node, view=pb.VIEW_ALL, machine=machine))
        yield call
        call.cancel()


async def refusal(call: Any) -> str:
    """Why the stream ends."""
    async with asyncio.timeout(PATIENCE):
        with suppress(grpc.aio.AioRpcError):
            while await call.read():
                pass
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        return str(await call.details())


async def acquired(address: str, machine: str, public_address: str = "172.16.0.1") -> pb.Lease:
    async with stub_of(address) as stub:
        request = on(machine, make_request("a", public_address))
        return (await stub.AcquireLease(request_to_proto(request))).lease


async def test_the_stream_of_a_second_machine_ends_and_the_first_ones_goes_on(central: ServiceProcess) -> None:
    async with dataplane(central.address, "m1") as first:
        while not (await next_step(first)).synced:
            pass
        lease = await acquired(central.address, "m1")
        async with stub_of(central.address) as stub:
            for _ in range(3):
                async with dataplane(central.address, "m2") as second:
                    assert "another machine is node a" in await refusal(second)
                with pytest.raises(grpc.aio.AioRpcError, match="another machine is node a"):
                    await acquired(central.address, "m2", "172.16.0.2")
                with pytest.raises(grpc.aio.AioRpcError, match="another machine is node a"):
                    await stub.ReportProgress(pb.ReportProgressRequest(node="a", machine="m2"))
            nodes = (await stub.ListNodes(pb.ListNodesRequest())).nodes
            assert [(node.name, node.lease, node.connected) for node in nodes] == [("a", lease.name, True)]
            await stub.RenewLease(pb.RenewLeaseRequest(node="a", name=lease.name, machine="m1"))
        assert not first.done()


async def test_of_two_machines_that_come_at_once_the_one_that_gets_the_lease_stays(central: ServiceProcess) -> None:
    async with dataplane(central.address, "m1") as first, dataplane(central.address, "m2") as second:
        for call in (first, second):
            while not (await next_step(call)).synced:
                pass
        await acquired(central.address, "m2")
        with pytest.raises(grpc.aio.AioRpcError, match="another machine"):
            await acquired(central.address, "m1")
        assert "another machine is node a" in await refusal(first)
        assert not second.done()


async def test_what_is_no_token_is_refused(central: ServiceProcess) -> None:
    for machine in ("m 1", "m1\n", "m" * 65, "ü"):
        with pytest.raises(grpc.aio.AioRpcError, match="machine is not a token"):
            await acquired(central.address, machine)


async def test_a_relay_refuses_the_second_machine_as_the_service_above_does(tmp_path: Path) -> None:
    tiers = Tiers(tmp_path)
    tiers.config.write_text(SMALL_JSON)
    tiers.start_top()
    tiers.add_relay()
    relay, top = tiers.bottom, tiers.top
    other = ServiceProcess(tiers._place(7), "--store=relay", "--central", f"--upstream={top.address}")
    tiers.services.append(other)
    try:
        async with dataplane(relay.address, "m1") as first:
            while not (await next_step(first)).synced:
                pass
            lease = await acquired(relay.address, "m1")
            for address in (relay.address, other.address, top.address):
                async with dataplane(address, "m2") as second:
                    assert "another machine is node a" in await refusal(second)
                with pytest.raises(grpc.aio.AioRpcError, match="another machine is node a"):
                    await acquired(address, "m2", "172.16.0.2")
            assert not first.done()
            assert (await acquired(relay.address, "m1")).name == lease.name
            async with stub_of(top.address) as stub:
                (node,) = (await stub.ListNodes(pb.ListNodesRequest())).nodes
                assert (node.name, node.connected) == ("a", True)
    finally:
        for service in tiers.services:
            service.__exit__(None, None, None)
