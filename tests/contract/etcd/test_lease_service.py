"""flannelette-lease beside a real etcd: one process per node, as a cluster runs it."""

import asyncio
import urllib.request
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.leases.table import Table
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.etcd.server import EtcdServer
from tests.examples.leases import SMALL_JSON, make_request
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.services.lease import ServiceProcess, next_step, stub_of
from tests.waiting import eventually


def start(directory: Path, endpoint: str, *arguments: str) -> ServiceProcess:
    directory.mkdir(exist_ok=True)
    return ServiceProcess(directory, "--store=etcd", f"--etcd-endpoints={endpoint}", *arguments)


async def test_two_nodes_see_each_others_leases_as_flannel_keeps_them(tmp_path: Path, own_etcd: EtcdServer) -> None:
    own_etcd.etcdctl("put", "/coreos.com/network/config", SMALL_JSON)
    with (
        start(tmp_path / "a", own_etcd.endpoint, "--node=node-a") as a,
        start(tmp_path / "b", own_etcd.endpoint, "--node=node-b") as b,
    ):
        async with stub_of(a.address) as stub_a, stub_of(b.address) as stub_b:
            watch, table = stub_b.WatchLeases(pb.WatchLeasesRequest()), Table()
            request = make_request("", "172.16.0.1", "10.5.7.0/24")
            lease = await acquire(stub_a, request_to_proto(request))
            assert (lease.name, lease.node) == ("10.5.7.0-24", "node-a")
            async with asyncio.timeout(PATIENCE):
                while lease.name not in table.leases:
                    table.fold(await next_step(watch))
            assert table.leases[lease.name].node == "node-a"
            own = stub_a.WatchLeases(pb.WatchLeasesRequest(view=pb.VIEW_OWN))
            assert [change.lease.name for change in (await next_step(own)).changes] == [lease.name]  # type: ignore[union-attr]  # an upsert
            watch.cancel()
            own.cancel()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub_a.AcquireLease(request_to_proto(make_request("node-b", "172.16.0.9")))
            assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert own_etcd.etcdctl("get", "/coreos.com/network/subnets/10.5.7.0-24", "--print-value-only").strip() == (
            '{"PublicIP":"172.16.0.1","PublicIPv6":null,"BackendType":"vxlan",'
            '"BackendData":{"VNI":1,"VtepMAC":"00:00:00:00:00:07"}}'
        )
        assert (a.terminate(), b.terminate()) == (0, 0)


async def test_an_etcd_that_is_away_at_start_is_waited_for_and_the_reason_is_told(tmp_path: Path) -> None:
    etcd = EtcdServer(tmp_path, port=free_port())
    with start(tmp_path / "a", etcd.endpoint, "--node=a") as process:
        async with stub_of(process.address) as stub:
            status = await stub.GetStatus(pb.GetStatusRequest())
            assert not status.ready
            assert "etcd store is away" in status.reasons[0]
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.AcquireLease(request_to_proto(make_request("a", "172.16.0.1")), timeout=PATIENCE)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            watch = stub.WatchLeases(pb.WatchLeasesRequest())
            step = await next_step(watch)
            assert step.store is not None
            assert not step.store.connected
            try:
                etcd.start()
                etcd.etcdctl("put", "/coreos.com/network/config", SMALL_JSON)
                async with asyncio.timeout(PATIENCE):
                    while (step := await next_step(watch)).network is None:
                        pass
                assert (await acquire(stub, request_to_proto(make_request("a", "172.16.0.1")))).node == "a"
            finally:
                etcd.kill()
            async with asyncio.timeout(PATIENCE):
                while (step := await next_step(watch)).store is None or step.store.connected:
                    pass
            status = await stub.GetStatus(pb.GetStatusRequest())
            assert (status.ready, status.leases) == (False, 1), "the last table stays"
            watch.cancel()
        assert process.terminate() == 0


async def acquire(stub: lease_pb2_grpc.LeaseServiceStub, request: pb.AcquireLeaseRequest) -> pb.Lease:
    """The lease; asked for again while the service has only just started."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return (await stub.AcquireLease(request)).lease
            except grpc.aio.AioRpcError as error:
                if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION):
                    raise
                await asyncio.sleep(0.05)


async def test_the_service_of_one_node_knows_from_etcd_who_is_connected_to_the_others(
    tmp_path: Path, own_etcd: EtcdServer
) -> None:
    own_etcd.etcdctl("put", "/coreos.com/network/config", SMALL_JSON)
    with (
        start(tmp_path / "a", own_etcd.endpoint, "--node=node-a") as a,
        start(tmp_path / "b", own_etcd.endpoint, "--node=node-b") as b,
    ):
        async with stub_of(a.address) as stub_a, stub_of(b.address) as stub_b:
            for number, (node, stub) in enumerate((("node-a", stub_a), ("node-b", stub_b)), 1):
                await acquire(stub, request_to_proto(make_request(node, f"172.16.0.{number}")))
            dataplane = stub_b.WatchLeases(pb.WatchLeasesRequest(node="node-b", view=pb.VIEW_ALL))
            await next_step(dataplane)
            for asked in (stub_b, stub_a):
                await until_connected(asked, {"node-a": False, "node-b": True})
            dataplane.cancel()
            await until_connected(stub_b, {"node-a": False, "node-b": False})


async def until_connected(stub: lease_pb2_grpc.LeaseServiceStub, wanted: dict[str, bool]) -> None:
    await eventually(
        lambda: stub.ListNodes(pb.ListNodesRequest(), timeout=PATIENCE),
        lambda answer: {node.name: node.connected for node in answer.nodes} == wanted,
    )


async def test_the_metrics_say_how_full_the_network_is(tmp_path: Path, own_etcd: EtcdServer) -> None:
    own_etcd.etcdctl("put", "/coreos.com/network/config", SMALL_JSON)
    port = free_port()
    flags = ("--node=a", "--healthz-ip=127.0.0.1", f"--healthz-port={port}")
    with start(tmp_path, own_etcd.endpoint, *flags) as process:
        async with stub_of(process.address) as stub:
            await acquire(stub, request_to_proto(make_request("a", "172.16.0.1")))
            shown = await asyncio.to_thread(get, f"http://127.0.0.1:{port}/metrics")
    assert 'flannelette_lease_subnets{family="IPv4",use="leased"} 1.0' in shown.splitlines()


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:  # noqa: S310 - http, on loopback
        return str(response.read(), "utf-8")
