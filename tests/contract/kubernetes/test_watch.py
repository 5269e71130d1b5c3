"""What the Kubernetes store tells of the nodes of a real kube-apiserver: they come, change, go, or cannot be read."""

from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.errors import NotFound, NotImplementedYet
from flannelette.services.core.leases.lease import VxlanData
from flannelette.services.core.leases.table import Removed
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.stores import DUAL, FLANNEL, MAC, MAC6, MANAGED, V4, Open, asks, asks_dual, flannels
from tests.services.follower import following


async def test_two_services_see_each_others_nodes_come_change_and_go(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a", "10.244.1.0/24")
    kube.make_node("b", "10.244.2.0/24")
    one, two = opened(node="a"), opened(node="b")
    async with following(one) as seen_by_one, following(two) as seen_by_two:
        assert seen_by_one.events[0] is seen_by_one.listings[0]
        assert seen_by_one.network is not None
        lease_a, lease_b = (
            await one.acquire(asks("a")),
            await two.acquire(asks("b", mac="02:00:00:00:00:0b", public="192.168.0.2")),
        )
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
            await seen.until(lambda f: f.leases.keys() == {"a"} and f.leases["a"].subnets == lease.subnets)
            kube.annotate("a", **lost)
            await seen.until(lambda f: not f.leases)
            assert (await store.acquire(asks("a"))).subnets == lease.subnets


async def test_a_change_in_one_family_alone_is_seen(kube: ApiServer, opened: Open) -> None:
    """A regression test of defect 15 of flannel v0.28."""
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
        await seen.until(lambda f: "backend-data of node a is not valid JSON" in f.refused.get("a", ""))
        kube.annotate("a", public_ip="nonsense", backend_data="null")
        await seen.until(lambda f: "not an IPv4 address" in f.refused.get("a", ""))
        assert seen.leases == {"a": lease}
        assert (await store.relist()).refused.keys() == {"a", "out"}
        assert (await store.acquire(asks("a"))).subnets == lease.subnets
        await seen.until(lambda f: f.refused.keys() == {"out"})
        with pytest.raises(NotImplementedYet, match="not ours to delete"):
            await store.discard("out", seen.refused["out"])


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
    (told,) = (event for event in seen.news if Removed("a") in event.changes)
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
