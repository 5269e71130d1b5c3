"""What a living node holds, no other node gets: a MAC, a public key, a public address; in Kubernetes.

Regression tests of hole 1.
"""

import re

import pytest

from flannelette.services.core.errors import NotYet
from tests.kubernetes.api_server import ApiServer
from tests.kubernetes.stores import Open, asks
from tests.services.follower import following
from tests.stores.every import asks_wireguard


async def test_a_living_nodes_mac_or_address_is_refused_until_it_is_gone(kube: ApiServer, opened: Open) -> None:
    """Two nodes with one public address on Kubernetes were both served, and nobody was told."""
    kube.make_node("a", "10.244.1.0/24")
    kube.make_node("b", "10.244.2.0/24")
    one, two = opened(node="a"), opened(node="b")
    async with following(one) as seen_by_one, following(two) as seen_by_two:
        await one.acquire(asks("a", mac="02:00:00:00:00:0a"))
        for seen in (seen_by_one, seen_by_two):
            await seen.until(lambda f: "a" in f.leases)
        for copy, what in (
            (asks("b", mac="02:00:00:00:00:0a", public="192.168.0.2"), "the MAC 02:00:00:00:00:0a"),
            (asks("b", mac="02:00:00:00:00:0b"), "the public address 192.168.0.1"),
        ):
            with pytest.raises(NotYet, match=f"node b cannot have {what}: node a holds it"):
                await two.acquire(copy)
        assert set(seen_by_one.leases) == {"a"}
        await one.acquire(asks("a", mac="02:00:00:00:00:0a"))
        await one.release("a", "a")
        await seen_by_two.until(lambda f: not f.leases)
        assert (await two.acquire(copy)).node == "b"


async def test_nodes_of_kubernetes_behind_one_nat_have_one_address_with_wireguard(
    kube: ApiServer, opened: Open
) -> None:
    kube.make_node("a", "10.244.1.0/24")
    kube.make_node("b", "10.244.2.0/24")
    network = '{"Network":"10.244.0.0/16","Backend":{"Type":"wireguard"}}'
    one, two = opened(network, node="a"), opened(network, node="b")
    async with following(one) as seen_by_one, following(two) as seen_by_two:
        await one.acquire(asks_wireguard("a", "A"))
        await seen_by_two.until(lambda f: "a" in f.leases)
        assert (await two.acquire(asks_wireguard("b", "E"))).node == "b"
        await seen_by_one.until(lambda f: set(f.leases) == {"a", "b"})
        with pytest.raises(NotYet, match=re.escape(f"node b cannot have the public key {'A' * 43}=: node a holds")):
            await two.acquire(asks_wireguard("b", "A"))
