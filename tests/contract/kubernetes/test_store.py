"""The Kubernetes store writes to a real kube-apiserver: annotations byte for byte, podCIDRs, conditions."""

import asyncio
import time
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from flannelette.services.core.errors import NotImplementedYet, NotYet, Unavailable
from flannelette.services.core.ipam import Reclaim
from flannelette.services.core.leases.lease import LeaseRequest, Progress, VxlanData, WireguardData
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.stores import DUAL, MAC, MAC6, QUICK, V4, Open, asks, asks_dual, flannels
from tests.patience import PATIENCE
from tests.services.follower import following


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
    changed = replace(lease.subnets[0], data=VxlanData(1, MAC6))
    assert other == replace(lease, subnets=(changed,), claim_order=other.claim_order), "its claim may be younger"


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


async def test_the_overwritten_public_address_is_the_nodes_own_too(kube: ApiServer, opened: Open) -> None:
    """A regression test of defect 20 of flannel v0.28."""
    kube.make_node("a", "10.244.1.0/24")
    kube.annotate("a", public_ip_overwrite="203.0.113.7", node_public_ip="198.51.100.1")
    store = opened()
    async with following(store) as seen:
        lease = await store.acquire(asks("a", public="198.51.100.1"))  # as a node does for which that is chosen
        assert flannels(kube, "a")["public-ip"] == "203.0.113.7"
        assert lease.subnets[0].public_address == ip_address("203.0.113.7")
        await seen.until(lambda f: f.leases == {"a": lease})
        kube.annotate("a", public_ip_overwrite=None)
        lease = await store.acquire(asks("a", public="198.51.100.1"))
        assert lease.subnets[0].public_address == ip_address("198.51.100.1")
        kube.annotate("a", public_ip_overwrite="nonsense")
        with pytest.raises(NotYet, match="public-ip-overwrite of node a is 'nonsense'"):
            await store.acquire(asks("a"))


async def test_a_node_without_pod_cidr_is_waited_for_and_then_leased_at_once(kube: ApiServer, opened: Open) -> None:
    kube.make_node("a")
    store = opened(timing=replace(QUICK, pod_cidr=3600.0))
    async with following(store) as seen, asyncio.timeout(PATIENCE):
        with pytest.raises(NotYet, match="node a has no podCIDR yet: waiting for Kubernetes"):
            await store.acquire(asks("a"))
        waiting = asyncio.create_task(store.acquire(asks("a")))
        kube.annotate("a", public_ip_overwrite="203.0.113.7")
        kube.make_node("b", "10.244.2.0/24")
        await store.acquire(asks("b", mac="02:00:00:00:00:0b", public="192.168.0.2"))
        await seen.until(lambda f: "b" in f.leases)  # told after what happened to a
        assert not waiting.done()
        kube.assign("a", "10.244.9.0/24")
        lease = await waiting
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
        await store.acquire(asks_dual("half", "host-gw"))
    assert flannels(kube, "half") == {}


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


async def test_what_is_kubernetes_business_is_refused_with_a_sentence(kube: ApiServer, opened: Open) -> None:
    store = opened()
    for call in (
        store.reserve([ip_network("10.244.9.0/24")], "a"),
        store.unreserve("a"),
        store.reclaim(Reclaim(node="a"), dry_run=True),
    ):
        with pytest.raises(NotImplementedYet, match="Kubernetes"):
            await call


async def test_a_network_that_does_not_hold_a_published_pod_cidr_is_pending(kube: ApiServer, opened: Open) -> None:
    """A regression test of hole 6."""
    kube.make_node("a", "10.244.1.0/24")
    lease = await opened().acquire(asks("a"))
    kube.make_node("new", "10.244.2.0/24")
    store = opened(V4.replace("10.244", "10.99"), written=time.time() + 60)
    async with following(store) as seen:
        assert seen.leases == {"a": lease}
        renewed = await store.acquire(asks("a", mac=MAC6))
        assert (renewed.cidrs, renewed.subnets[0].data) == (lease.cidrs, VxlanData(1, MAC6))
        await seen.until(lambda f: f.leases == {"a": renewed})
        with pytest.raises(NotYet, match=r"podCIDR 10\.244\.2\.0/24 of node new lies outside the network 10\.99"):
            await store.acquire(asks("new"))
