"""Cures of rules before routing open no port of the host to peers' pods."""

import asyncio
from contextlib import ExitStack
from typing import Final

import pytest

from tests.faults.silent_scene import Kind, two_pods
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.watched_node import WatchedNode
from tests.kernel.cluster.test_cures_of_traces import _cured

FIREWALLS: Final = {
    "iptables-nft": "iptables-nft -t mangle -A PREROUTING -s 10.0.0.0/8 -i flannel.1 -j DROP",
    "iptables-legacy": "iptables-legacy -t mangle -A PREROUTING -s 10.0.0.0/8 -i flannel.1 -j DROP",
    "nft": (
        "nft 'table inet guard { chain pre { type filter hook prerouting priority -150; "
        "iifname flannel.1 ip saddr 10.0.0.0/8 drop; }; }'"
    ),
}


@pytest.mark.parametrize("name", FIREWALLS)
async def test_a_cure_before_routing_opens_no_port_of_the_host(name: str) -> None:
    async with two_pods(Kind(has_masq=True, is_probed=True)) as pods:
        with ExitStack() as ending:
            make = NamespaceMaker()
            ending.callback(make.close)
            node = WatchedNode(make, pods.hosts.cluster.namespace, pods.hosts.n2, pods.pods)
            ending.enter_context(node.listening())
            assert await asyncio.to_thread(node.reached_from_the_overlay, 4)
            await pods.n1(FIREWALLS[name])
            before = await asyncio.to_thread(node.reached_from_the_overlay, 4)
            done = await _cured(pods)
            after = await asyncio.to_thread(node.reached_from_the_overlay, 4)
            assert after == before, (done, before, after)
