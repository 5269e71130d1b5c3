"""The ways into a real kube-apiserver: who we are, which node we run on, and what happens while it is away."""

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import grpc
import grpc.aio
import pytest

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.leases.table import Table, Upserted
from flannelette.services.lease.stores.kube.client import node_of_our_pod
from flannelette.services.lease.stores.kube.store import KubeStore
from flannelette.services.lease.stores.kube.values import KubeSettings
from flannelette.services.lease.stores.store import Changed
from flannelette.services.runtime.lease.wire import request_to_proto
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.stores import MANAGED, QUICK, V4, Open, asks
from tests.services.follower import following
from tests.services.lease import ServiceProcess, next_step, stub_of


async def test_one_central_service_serves_many_nodes(kube: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "net-conf.json").write_text(V4)
    for number in (1, 2, 3):
        kube.make_node(f"n{number}", f"10.244.{number}.0/24")
    flags = (
        "--store=kube",
        "--central",
        f"--kubeconfig-file={kube.kubeconfig()}",
        f"--net-config-path={tmp_path}/net-conf.json",
    )
    with ServiceProcess(tmp_path, *flags) as process:
        async with stub_of(process.address) as stub:
            watch = stub.WatchLeases(pb.WatchLeasesRequest(view=pb.VIEW_ALL))
            table = Table()
            while not table.synced:
                table.fold(await next_step(watch))
            for number in (1, 2, 3):
                asked = asks(f"n{number}", mac=f"02:00:00:00:00:{number:02x}", public=f"192.168.0.{number}")
                lease = (await stub.AcquireLease(request_to_proto(asked))).lease
                assert (lease.name, lease.node, lease.subnets[0].cidr) == (
                    f"n{number}",
                    f"n{number}",
                    f"10.244.{number}.0/24",
                )
                assert not lease.HasField("expire_time")
            while len(table.leases) < 3:
                table.fold(await next_step(watch))
            watch.cancel()
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.AcquireLease(request_to_proto(asks("n9")))
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "there is no node n9 in Kubernetes" in str(caught.value.details())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.ReserveSubnet(pb.ReserveSubnetRequest(cidrs=["10.244.9.0/24"]))
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert process.resident_mib < 120
        assert process.terminate() == 0


async def test_the_node_of_a_pod_is_asked_of_kubernetes(kube: ApiServer) -> None:
    kube.call("POST", "/api/v1/namespaces", {"metadata": {"name": "flannel"}})
    spec = {"nodeName": "node-7", "containers": [{"name": "a", "image": "b"}]}
    kube.call("POST", "/api/v1/namespaces/flannel/pods", {"metadata": {"name": "pod-1"}, "spec": spec})

    async def node_of(**variables: str) -> str:
        environment = {"POD_NAMESPACE": "flannel", **variables}
        return await node_of_our_pod(KubeSettings(), environment, timing=QUICK, access=kube.access())

    assert await node_of(POD_NAME="pod-1") == "node-7"
    assert await node_of(POD_NAME="pod-1", NODE_NAME="node-1") == ""
    assert await node_of() == ""
    with pytest.raises(Misconfigured, match="POD_NAME=pod-2"):
        await node_of(POD_NAME="pod-2")


async def test_who_may_not_is_told_which_rights_to_give(kube: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "net-conf.json").write_text(V4)
    settings = KubeSettings(network_file=tmp_path / "net-conf.json")
    for token, sentence in ((kube.nobody, "get, list and watch of nodes and patch"), ("wrong", "does not know us")):
        store = KubeStore(settings, timing=QUICK, access=kube.access(token))
        async with following(store) as seen:
            await seen.until(lambda f: bool(f.statuses))
            assert sentence in seen.statuses[0].error
            with pytest.raises(Unavailable, match=sentence):
                await store.acquire(asks("a"))
        await store.close()


async def test_a_token_that_is_rotated_is_read_again(kube: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "net-conf.json").write_text(V4)
    access = kube.access("expired")
    store = KubeStore(KubeSettings(network_file=tmp_path / "net-conf.json"), timing=QUICK, access=access)
    async with following(store) as seen:
        await seen.until(lambda f: bool(f.statuses) and not f.connected)
        kube.rotate(access)
        await seen.until(lambda f: f.connected)
    await store.close()


async def test_a_kubeconfig_leads_there_too_and_the_url_of_the_flag_wins(kube: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "net-conf.json").write_text(V4)
    path = kube.kubeconfig()
    good = KubeSettings(kubeconfig=str(path), network_file=tmp_path / "net-conf.json")
    elsewhere = replace(good, api_url="https://127.0.0.1:1/")
    for settings, works in ((good, True), (elsewhere, False)):
        store = KubeStore(settings, timing=QUICK)
        async with following(store) as seen:
            await seen.until(lambda f, works=works: bool(f.statuses) and f.connected == works)  # type: ignore[misc]
        await store.close()
    assert "refuses connections" in seen.statuses[0].error


async def test_the_watch_goes_on_where_it_was_when_the_api_server_was_away(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    store = opened()
    async with following(store) as seen:
        lease = await store.acquire(asks("a"))
        await seen.until(lambda f: "a" in f.leases and f.connected)
        kube.kill()
        try:
            await seen.until(lambda f: not f.connected)
            with pytest.raises(Unavailable, match="refuses connections"):
                await store.acquire(asks("a"))
            assert seen.leases == {"a": lease}
        finally:
            kube.start()
        kube.annotate("a", public_ip="192.168.0.2")
        await seen.until(
            lambda f: f.leases["a"].subnets[0].public_address == ip_address("192.168.0.2") and f.connected
        )
        changed = [event for event in seen.events if isinstance(event, Changed)]
        assert all(isinstance(change, Upserted) for event in changed for change in event.changes), "nothing was lost"


async def test_an_api_server_that_freezes_is_away_and_goes_on_where_it_was(kube: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "net-conf.json").write_text(V4)
    settings = KubeSettings(network_file=tmp_path / "net-conf.json")
    store = KubeStore(settings, timing=replace(QUICK, silence=1.0, call=2.0), access=kube.access())
    kube.make_node("a", "10.244.1.0/24", annotations=MANAGED)
    async with following(store) as seen:
        await seen.until(lambda f: "a" in f.leases and f.connected)
        kube.freeze()
        try:
            await seen.until(lambda f: not f.connected)
            assert "does not answer in time" in seen.statuses[-1].error
        finally:
            kube.thaw()
        kube.annotate("a", public_ip="192.168.0.2")
        await seen.until(
            lambda f: f.leases["a"].subnets[0].public_address == ip_address("192.168.0.2") and f.connected
        )
        assert seen.snapshots == 1
    await store.close()
