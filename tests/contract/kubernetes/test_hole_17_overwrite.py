"""What docs/compatibility.md says of `public-ip-overwrite` on a node that runs, at a real kube-apiserver."""

import asyncio
import time
from ipaddress import ip_address

from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.stores import Open, asks, flannels
from tests.services.follower import following


async def test_hole_17_an_address_overwritten_on_a_running_node_counts_when_its_lease_is_acquired_next(
    kube: ApiServer, opened: Open
) -> None:
    """As with flanneld, which acquires when it starts."""
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
