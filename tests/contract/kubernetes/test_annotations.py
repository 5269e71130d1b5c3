"""Annotations of a node that runs, at a real kube-apiserver: what somebody overwrites, and `public-ip-overwrite`."""

import asyncio
import time
from ipaddress import ip_address
from pathlib import Path

import pytest

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.stores import V4, Open, asks, flannels
from tests.services.follower import Node, following, running
from tests.services.lease import ServiceProcess
from tests.waiting import equals, eventually

OVERWRITES: dict[str, dict[str, str | None]] = {
    "garbage": {"backend_data": "garbage"},
    "no address": {"public_ip": "nonsense"},
    "everywhere": {"public_ip": "255.255.255.255"},
    "a MAC of nobody": {"backend_data": '{"VNI":1,"VtepMAC":"02:00:00:00:00:77"}'},
    "somebody's address": {"public_ip": "192.168.0.77"},
    "nothing": {"public_ip": None, "backend_data": None, "kube_subnet_manager": None},
}


@pytest.mark.parametrize("overwrite", OVERWRITES.values(), ids=OVERWRITES)
async def test_overwritten_annotations_of_a_living_node_are_put_back(
    kube: ApiServer, tmp_path: Path, overwrite: dict[str, str | None]
) -> None:
    """Each time. A regression test of hole 7."""
    (tmp_path / "net-conf.json").write_text(V4)
    kube.make_node("a", "10.244.1.0/24")
    kubeconfig = f"--kubeconfig-file={kube.kubeconfig()}"
    flags = ("--store=kube", "--central", kubeconfig, f"--net-config-path={tmp_path}/net-conf.json")
    with ServiceProcess(tmp_path, *flags) as process:
        node = Node(process.address, asks("a"))
        async with running(node):
            await eventually(lambda: node, lambda seen: seen.is_settled)
            before = flannels(kube, "a")
            for _ in range(2):
                kube.annotate("a", **overwrite)
                await eventually(lambda: flannels(kube, "a"), equals(before))
                await eventually(lambda: node, lambda seen: seen.is_settled)


async def test_an_address_overwritten_on_a_running_node_counts_when_its_lease_is_acquired_next(
    kube: ApiServer, opened: Open
) -> None:
    """As with flanneld, which acquires when it starts: docs/compatibility.md. A regression test of hole 17."""
    kube.make_node("a", "10.244.1.0/24")
    kube.make_node("b", "10.244.2.0/24")
    store = opened()
    async with following(store) as seen:
        lease = await store.acquire(asks("a"))
        await seen.until(lambda f: f.leases == {"a": lease})
        while int(time.time()) <= lease.claim_order:  # noqa: ASYNC110 - the API server notes whole seconds
            await asyncio.sleep(0.05)
        kube.annotate("a", public_ip_overwrite="203.0.113.7")
        second = await store.acquire(
            asks("b", mac="02:00:00:00:00:0b", public="192.168.0.2")
        )  # told after what happened to a
        await seen.until(lambda f: "b" in f.leases)
        assert seen.leases == {"a": lease, "b": second}, "nor is the claim any younger for what the operator wrote"
        assert flannels(kube, "a")["public-ip"] == "192.168.0.1"
        again = await store.acquire(asks("a"))
        assert again.subnets[0].public_address == ip_address("203.0.113.7")
        await seen.until(lambda f: f.leases["a"] == again)
