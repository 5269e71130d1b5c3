"""Cures of routes, pods and the underlay, carried out: packets flow again, and nobody reaches more than before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TypeAlias

import pytest
import pytest_asyncio

from tests.faults.silent_scene import Kind, Pods, state_of, two_pods
from tests.findings.fault import SilentFault
from tests.findings.pod_rows import POD_FAULTS
from tests.findings.route_rows import ROUTE_FAULTS
from tests.findings.underlay_rows import UNDERLAY_FAULTS
from tests.findings.words import words
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.watched_node import WatchedNode
from tests.patience import PATIENCE
from tests.shared import Shared, sharing
from tests.waiting import eventually, has

pytestmark = pytest.mark.asyncio(loop_scope="module")
FAULTS: dict[str, SilentFault] = ROUTE_FAULTS | POD_FAULTS | UNDERLAY_FAULTS
GUARD = """
sysctl -qw net.ipv4.conf.eth0.rp_filter=1
nft 'table inet guard {
  chain input { type filter hook input priority 0; policy drop;
    iif lo accept; ct state established,related accept;
    meta l4proto { icmp, ipv6-icmp } accept; tcp dport 22 accept;
    ip saddr { 10.99.0.12, 10.98.0.12 } udp dport 8472 accept;
  };
  chain forward { type filter hook forward priority 0;
    ip saddr 10.99.0.66 drop; iifname "eth0" oifname "behind0" drop;
  };
}'
"""
"""SSH and the tunnel from the peers alone, nothing to hosts behind it, strict reverse paths."""
OPENS = {
    "another-table-first": {"stranger: a pod, as a host behind it"},
    "rule-diverts-one-pod": {"stranger: a pod, as a host behind it"},
    "tunnel-fails-the-reverse-path": {
        "stranger: the node, as a host behind it",
        "stranger: a pod, as a host behind it",
        "stranger: a pod, as a pod of the peer",
        "stranger: a pod, as another pod of the node",
    },
}
"""Forged sources alone: a loose reverse path filter takes those that have a route by another interface, and what was
typed in the two rows with another table, which the cure leaves, has made eth0 the way to hosts behind n1.
"""


@dataclass
class Scene:
    """n1 with a guard, and what others reach on it."""

    pods: Pods
    node: WatchedNode
    reached: set[str]

    async def until_pods_are_answered(self) -> None:
        """By each other; an act of a row may keep them from what is outside."""
        await eventually(self._lost, has(0), PATIENCE / 2)

    async def _lost(self) -> set[str]:
        return {each for each in await asyncio.to_thread(self.node.lost) if "outside" not in each}


Scenes: TypeAlias = Shared[Kind, Scene]


def everything_reached(node: WatchedNode) -> set[str]:
    """What others reach by the underlay, and by the overlay."""
    return node.reached() | node.reached_from_the_overlay(4)


@asynccontextmanager
async def guarded(kind: Kind) -> AsyncIterator[Scene]:
    make = NamespaceMaker()
    async with two_pods(kind) as pods:
        with ExitStack() as ending:
            ending.callback(make.close)
            node = WatchedNode(make, pods.hosts.cluster.namespace, pods.hosts.n2, pods.pods)
            ending.enter_context(node.listening())
            await pods.n1(GUARD)
            yield Scene(pods, node, await asyncio.to_thread(everything_reached, node))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Scenes]:
    async with sharing(guarded, lambda scene: state_of(scene.pods)) as shared:
        yield shared


def kind_of(name: str) -> Kind:
    fault = FAULTS[name]
    return Kind(fault.backend, "ipv4", fault.is_far, has_masq=True)


ROWS: list[str] = sorted((name for name, each in FAULTS.items() if each.cure and 4 in each.versions), key=kind_of)
"""Those of one kind of scene follow each other."""


@pytest.mark.parametrize("name", ROWS)
async def test_a_cure_lets_packets_flow_and_opens_nothing(scenes: Scenes, name: str) -> None:
    fault = FAULTS[name]
    async with scenes.borrowed(kind_of(name)) as scene:
        pods, node = scene.pods, scene.node
        ((own, peer),) = pods.hosts.rows
        said = words(own, peer) | {"directory": str(pods.hosts.cluster.directory), "n2": pods.hosts.n2.name}
        await pods.n1(fault.act.format_map(said))
        if not fault.is_told:
            await pods.running.resync()
        await pods.n1((await pods.found(fault.check)).cure)
        await pods.running.resync()
        await pods.until_nothing_is_found()
        reached = await asyncio.to_thread(everything_reached, node)
        await pods.n1(fault.and_then.format_map(said))
        await pods.n1("sysctl -qw net.ipv4.conf.eth0.rp_filter=1")
        await scene.until_pods_are_answered()
        assert reached - scene.reached <= OPENS.get(name, set())
