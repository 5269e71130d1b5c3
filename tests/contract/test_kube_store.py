"""The Kubernetes store against a real kube-apiserver: annotations byte for byte, podCIDRs, conditions, the watch."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path

import grpc
import grpc.aio
import pytest
from flannelette.lease.v1 import lease_pb2 as pb

from services.core.errors import Misconfigured, NotFound, NotImplementedYet, NotYet, Unavailable
from services.core.lease import BackendData, LeaseRequest, VxlanData, WireguardData, Wish
from services.core.progress import Progress
from services.core.table import Removed, Table, Upserted
from services.lease.administration import Reclaim
from services.lease.store import Changed, Snapshot
from services.lease.stores.kube import KubeSettings, KubeStore
from services.lease.stores.kube.annotations import annotations
from services.lease.stores.kube.pod import node_of_our_pod
from services.lease.stores.kube.records import Timing
from services.runtime.wire import request_to_proto
from tests.contract.follower import following
from tests.kube import ApiServer
from tests.lease_service import ServiceProcess, next_step, stub_of

V4 = '{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan"}}'
DUAL = '{"Network":"10.244.0.0/16","EnableIPv6":true,"IPv6Network":"fd00:244::/48","Backend":{"Type":"vxlan"}}'
QUICK = Timing(retry_first=0.05, retry_most=0.5, patch_pause=0.1, patch_total=1.0, pod_cidr=5.0)
MAC, MAC6 = "02:00:00:00:00:01", "02:00:00:00:00:06"
FLANNEL = "flannel.alpha.coreos.com/"
MANAGED = {f"{FLANNEL}kube-subnet-manager": "true", f"{FLANNEL}public-ip": "192.168.0.1"}

Open = Callable[..., KubeStore]


@pytest.fixture
async def opened(kube: ApiServer, tmp_path: Path) -> AsyncIterator[Open]:
    """Opens stores on the API server; closes them in the end."""
    async with AsyncExitStack() as stack:

        def open_store(network: str = V4, *, prefix: str = "", node: str = "", condition: bool = True) -> KubeStore:
            path = tmp_path / "net-conf.json"
            path.write_text(network)
            keys = annotations(prefix) if prefix else annotations()
            settings = KubeSettings(annotations=keys, network_file=path, sets_condition=condition)
            store = KubeStore(settings, node=node, timing=QUICK, access=kube.access())
            stack.push_async_callback(store.close)
            return store

        yield open_store


def asks(node: str, kind: str = "vxlan", *, mac: str = MAC, public: str = "192.168.0.1") -> LeaseRequest:
    data = VxlanData(1, mac) if kind == "vxlan" else None
    return LeaseRequest(node, kind, (Wish(ip_address(public), data),))


def asks_dual(
    node: str, kind: str, data: BackendData | None = None, data6: BackendData | None = None
) -> LeaseRequest:
    wishes = (Wish(ip_address("192.168.0.1"), data), Wish(ip_address("fd00::1"), data6))
    return LeaseRequest(node, kind, wishes)


def flannels(kube: ApiServer, node: str) -> dict[str, str]:
    return {key.removeprefix(FLANNEL): text for key, text in kube.annotations(node).items() if FLANNEL in key}


async def test_a_vxlan_nodes_annotations_are_flannels_byte_for_byte(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    lease = await opened().acquire(asks("a"))
    assert flannels(kube, "a") == {
        "backend-data": '{"VNI":1,"VtepMAC":"02:00:00:00:00:01"}',
        "backend-type": "vxlan",
        "kube-subnet-manager": "true",
        "public-ip": "192.168.0.1",
    }
    assert (lease.name, lease.node, lease.expires_at, lease.reserved) == ("a", "a", None, False)
    (subnet,) = lease.subnets
    assert (subnet.cidr, subnet.public_address, subnet.data) == (
        ip_network("10.244.1.0/24"),
        ip_address("192.168.0.1"),
        VxlanData(1, MAC),
    )


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (
            asks_dual("a", "vxlan", VxlanData(1, MAC), VxlanData(1, MAC6)),
            {
                "backend-data": f'{{"VNI":1,"VtepMAC":"{MAC}"}}',
                "backend-v6-data": f'{{"VNI":1,"VtepMAC":"{MAC6}"}}',
                "public-ip": "192.168.0.1",
                "public-ipv6": "fd00::1",
            },
        ),
        (
            asks_dual("a", "host-gw"),
            {"backend-data": "null", "backend-v6-data": "null", "public-ip": "192.168.0.1", "public-ipv6": "fd00::1"},
        ),
        (
            asks_dual("a", "wireguard", WireguardData("a+b=", 51820), WireguardData("c/d=", 51821)),
            {
                "backend-data": '{"PublicKey":"a+b=","Port":51820}',
                "backend-v6-data": '{"PublicKey":"c/d=","Port":51821}',
                "public-ip": "192.168.0.1",
                "public-ipv6": "fd00::1",
            },
        ),
    ],
    ids=["vxlan", "host-gw", "wireguard"],
)
async def test_dual_stack_annotations_are_flannels(
    kube: ApiServer, opened: Open, request_: LeaseRequest, expected: dict[str, str]
) -> None:
    kube.make_node("a", "10.244.1.0/24", "fd00:244:0:1::/64")
    lease = await opened(DUAL).acquire(request_)
    written = {"kube-subnet-manager": "true", "backend-type": request_.backend_type, **expected}
    assert flannels(kube, "a") == written
    assert [subnet.cidr for subnet in lease.subnets] == [ip_network("10.244.1.0/24"), ip_network("fd00:244:0:1::/64")]


@pytest.mark.parametrize(("kind", "written"), [("udp", ""), ("alloc", ""), ("ipip", "ipip"), ("host-gw", "host-gw")])
async def test_backends_without_data_write_null(kube: ApiServer, opened: Open, kind: str, written: str) -> None:
    kube.make_node("a", "10.244.1.0/24")
    await opened().acquire(asks("a", written))
    assert flannels(kube, "a") == {
        "backend-data": "null",
        "backend-type": written,
        "kube-subnet-manager": "true",
        "public-ip": "192.168.0.1",
    }, kind


async def test_asking_again_for_the_same_writes_nothing(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    store = opened()
    lease = await store.acquire(asks("a"))
    version = kube.node("a")["metadata"]["resourceVersion"]
    assert await store.acquire(asks("a")) == lease
    assert kube.node("a")["metadata"]["resourceVersion"] == version
    other = await store.acquire(asks("a", mac=MAC6))
    assert other == replace(lease, subnets=(replace(lease.subnets[0], data=VxlanData(1, MAC6)),))


async def test_annotations_of_others_stay_and_ours_have_the_prefix_of_the_flag(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24", annotations={"example.org/kept": "yes"})
    store = opened(prefix="example.com/net")
    async with following(store) as seen:
        await store.acquire(asks("a"))
        await seen.until(lambda f: "a" in f.leases)
    assert {key for key in kube.annotations("a") if "example" in key} == {
        "example.org/kept",
        "example.com/net-backend-data",
        "example.com/net-backend-type",
        "example.com/net-kube-subnet-manager",
        "example.com/net-public-ip",
    }


async def test_defect_20_the_overwritten_public_address_is_the_nodes_own_too(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    kube.annotate("a", public_ip_overwrite="203.0.113.7", node_public_ip="198.51.100.1")
    store = opened()
    async with following(store) as seen:
        lease = await store.acquire(asks("a"))
        assert flannels(kube, "a")["public-ip"] == "203.0.113.7"
        assert lease.subnets[0].public_address == ip_address("203.0.113.7")
        await seen.until(lambda f: f.leases == {"a": lease})
        kube.annotate("a", public_ip_overwrite=None)
        assert (await store.acquire(asks("a"))).subnets[0].public_address == ip_address("198.51.100.1")
        kube.annotate("a", public_ip_overwrite="nonsense")
        with pytest.raises(NotYet, match="public-ip-overwrite of node a is 'nonsense'"):
            await store.acquire(asks("a"))


async def test_a_node_without_pod_cidr_is_waited_for_and_then_leased_at_once(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a")
    store = opened()
    async with following(store):
        with pytest.raises(NotYet, match="node a has no podCIDR yet: waiting for Kubernetes"):
            await asyncio.wait_for(store.acquire(asks("a")), 2)
        waiting = asyncio.create_task(store.acquire(asks("a")))
        await asyncio.sleep(0.3)
        assert not waiting.done()
        kube.assign("a", "10.244.9.0/24")
        lease = await asyncio.wait_for(waiting, 2)
        assert lease.subnets[0].cidr == ip_network("10.244.9.0/24")


async def test_what_stands_in_the_way_of_a_lease_is_told(kube: ApiServer, opened: Open) -> None:
    kube.make_node("outside", "10.9.1.0/24")
    kube.make_node("half", "10.244.1.0/24")
    store = opened(DUAL)
    with pytest.raises(NotYet, match="there is no node missing in Kubernetes"):
        await store.acquire(asks("missing"))
    with pytest.raises(NotYet, match=r"podCIDR 10\.9\.1\.0/24 of node outside lies outside the network 10\.244"):
        await store.acquire(asks("outside"))
    with pytest.raises(NotYet, match="node half has no IPv6 podCIDR yet"):
        await store.acquire(asks("half"))
    assert flannels(kube, "half") == {}


async def test_two_services_see_each_others_nodes_come_change_and_go(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    kube.make_node("b", "10.244.2.0/24")
    one, two = opened(node="a"), opened(node="b")
    async with following(one) as seen_by_one, following(two) as seen_by_two:
        assert isinstance(seen_by_one.events[0], Snapshot)
        assert seen_by_one.network is not None
        lease_a, lease_b = await one.acquire(asks("a")), await two.acquire(asks("b", public="192.168.0.2"))
        for seen in (seen_by_one, seen_by_two):
            await seen.until(lambda f: f.leases == {"a": lease_a, "b": lease_b} and f.connected)
        kube.delete_node("b")
        for seen in (seen_by_one, seen_by_two):
            await seen.until(lambda f: f.leases == {"a": lease_a})
            assert seen.snapshots == 1
        with pytest.raises(NotFound):
            await two.renew("b", "b")
        assert await one.renew("a", "a") == lease_a


async def test_a_node_made_again_with_another_pod_cidr_is_the_same_lease_changed(
    kube: ApiServer, opened: Open
) -> None:
    kube.make_node("a", "10.244.1.0/24")
    store = opened()
    async with following(store) as seen:
        await store.acquire(asks("a"))
        await seen.until(lambda f: "a" in f.leases)
        held = kube.annotations("a")
        kube.delete_node("a")
        kube.make_node("a", "10.244.7.0/24", annotations=held)
        await seen.until(lambda f: "a" in f.leases and f.leases["a"].subnets[0].cidr == ip_network("10.244.7.0/24"))
        again = await store.relist()
        assert again.leases == seen.leases


async def test_a_node_that_loses_its_annotations_loses_its_lease(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    store = opened()
    async with following(store) as seen:
        lease = await store.acquire(asks("a"))
        for lost in ({"kube_subnet_manager": None}, {"kube_subnet_manager": "false"}, {"public_ip": None}):
            await seen.until(lambda f: f.leases == {"a": lease})
            kube.annotate("a", **lost)
            await seen.until(lambda f: not f.leases)
            assert await store.acquire(asks("a")) == lease


async def test_defect_15_a_change_in_one_family_alone_is_seen(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24", "fd00:244:0:1::/64")
    store = opened(DUAL)
    async with following(store) as seen:
        lease = await store.acquire(asks_dual("a", "vxlan", VxlanData(1, MAC), VxlanData(1, MAC6)))
        await seen.until(lambda f: f.leases == {"a": lease})
        kube.annotate("a", backend_v6_data='{"VNI":1,"VtepMAC":"02:00:00:00:00:99"}')
        await seen.until(lambda f: f.leases["a"].subnets[1].data == VxlanData(1, "02:00:00:00:00:99"))
        kube.annotate("a", public_ipv6="fd00::9")
        await seen.until(lambda f: f.leases["a"].subnets[1].public_address == ip_address("fd00::9"))
        kube.annotate("a", public_ipv6=None)
        await seen.until(lambda f: f.leases["a"].subnets == lease.subnets[:1])
        kube.annotate("a", public_ip="192.168.0.9")
        await seen.until(lambda f: f.leases["a"].subnets[0].public_address == ip_address("192.168.0.9"))
        kube.annotate("a", public_ip=None, public_ipv6="fd00::1")
        await seen.until(lambda f: [subnet.cidr.version for subnet in f.leases["a"].subnets] == [6])


async def test_what_cannot_be_read_is_refused_and_the_lease_stays_as_it_was(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    kube.make_node(
        "out", "10.9.0.0/24", annotations={f"{FLANNEL}kube-subnet-manager": "true", f"{FLANNEL}public-ip": "1.2.3.4"}
    )
    store = opened()
    async with following(store) as seen:
        assert "lies outside the network" in seen.refused["out"]
        lease = await store.acquire(asks("a"))
        await seen.until(lambda f: f.leases == {"a": lease})
        kube.annotate("a", backend_data="{broken")
        await seen.until(lambda f: "backend-data of node a is no JSON" in f.refused.get("a", ""))
        kube.annotate("a", public_ip="nonsense", backend_data="null")
        await seen.until(lambda f: "no IPv4 address" in f.refused.get("a", ""))
        assert seen.leases == {"a": lease}
        assert (await store.relist()).refused.keys() == {"a", "out"}
        assert await store.acquire(asks("a")) == lease
        await seen.until(lambda f: f.refused.keys() == {"out"})
        with pytest.raises(NotImplementedYet, match="not ours to delete"):
            await store.discard("out", seen.refused["out"])


async def test_the_first_report_sets_the_condition_and_later_ones_nothing(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    store = opened()
    async with following(store) as seen:
        await store.acquire(asks("a"))
        await seen.until(lambda f: "a" in f.leases)
        await store.report(Progress("a", ""))  # torn down
        assert kube.condition("a") is None
        await store.report(Progress("a", "1:1"))
        condition = kube.condition("a")
        assert condition is not None
        assert {key: condition[key] for key in ("status", "reason", "message")} == {
            "status": "False",
            "reason": "FlannelIsUp",
            "message": "Flannel is running on this node",
        }
        version = kube.node("a")["metadata"]["resourceVersion"]
        await store.report(Progress("a", "1:2"))
        await opened().report(Progress("a", "1:2"))
        assert kube.node("a")["metadata"]["resourceVersion"] == version
        kube.delete_node("a")
        await seen.until(lambda f: not f.leases)
        kube.make_node("a", "10.244.1.0/24")
        await store.report(Progress("a", "1:3"))
        assert kube.condition("a") is not None
    with pytest.raises(Unavailable, match="there is no node b"):
        await store.report(Progress("b", "1:1"))


async def test_the_condition_may_be_switched_off(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    await opened(condition=False).report(Progress("a", "1:1"))
    assert kube.condition("a") is None


async def test_a_released_node_is_forgotten_by_its_peers_and_keeps_its_mac(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    store = opened()
    async with following(store) as seen:
        await store.acquire(asks("a"))
        await seen.until(lambda f: "a" in f.leases)
        await store.release("a", "somebody-elses")
        await store.release("a", "a")
        await store.release("a", "a")
        await seen.until(lambda f: not f.leases)
    (told,) = (event for event in seen.events if isinstance(event, Changed) and Removed("a") in event.changes)
    assert told.released == {"a"}
    assert flannels(kube, "a")["backend-data"] == f'{{"VNI":1,"VtepMAC":"{MAC}"}}'
    await store.release("gone", "gone")


async def test_a_store_with_alloc_looks_at_its_own_node_only(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24", annotations=MANAGED)
    kube.make_node("b", "10.244.2.0/24", annotations=MANAGED)
    async with following(opened(V4.replace("vxlan", "alloc"), node="a")) as seen:
        assert seen.leases.keys() == {"a"}
    async with following(opened(V4.replace("vxlan", "alloc"))) as seen:
        assert seen.leases.keys() == {"a", "b"}


async def test_what_is_kubernetes_business_is_refused_with_a_sentence(kube: ApiServer, opened: Open) -> None:
    store = opened()
    for call in (
        store.reserve([ip_network("10.244.9.0/24")], "a"),
        store.unreserve("a"),
        store.reclaim(Reclaim(node="a"), dry_run=True),
    ):
        with pytest.raises(NotImplementedYet, match="Kubernetes"):
            await call


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
                asked = asks(f"n{number}", public=f"192.168.0.{number}")
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
