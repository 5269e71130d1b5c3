"""What somebody rewrites of ours in the kernel is put right at once, as what somebody deletes is.

Regression tests of hole 9.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Final, NamedTuple

import pytest
import pytest_asyncio

from tests.hosts.dataplane import Running
from tests.hosts.namespaces import NamespaceMaker
from tests.hosts.two_hosts import TwoHosts, two_hosts
from tests.shared import Shared, sharing
from tests.waiting import equals, eventually

MAC: Final = "06:0c:56:6d:fb:b3"
"""Of n2's device."""
FDB: Final = f"bridge fdb replace {MAC} dev flannel.1"
REWRITES: Final = {
    "dst": f"{FDB} dst 10.99.0.99 self permanent",
    "port": f"{FDB} dst 10.99.0.12 port 9999 self permanent",
    "vni": f"{FDB} dst 10.99.0.12 vni 99 self permanent",
    "via": f"{FDB} dst 10.99.0.12 via cni0 self permanent",
    "state": f"{FDB} dst 10.99.0.99 self dynamic",
    "neighbour": "ip neigh replace 10.5.53.0 lladdr 02:00:00:00:00:99 dev flannel.1 nud permanent",
    "neighbour's state": "ip neigh replace 10.5.53.0 lladdr 02:00:00:00:00:99 dev flannel.1 nud reachable",
    "route": "ip route replace 10.5.53.0/24 via 10.99.0.77 dev eth0 onlink metric 1334 proto 77",
    "somebody's route": "ip route replace 10.5.53.0/24 via 10.5.99.0 dev flannel.1 onlink metric 1334 proto boot",
}
"""What is changed of n2's part on n1, and the command."""


pytestmark = pytest.mark.asyncio(loop_scope="module")


class Scene(NamedTuple):
    hosts: TwoHosts
    running: Running


@asynccontextmanager
async def overlay(_: None) -> AsyncIterator[Scene]:
    """Two hosts, and a dataplane on n1 whose audits are ten minutes apart."""
    with ExitStack() as ending:
        make_netns = NamespaceMaker()
        ending.callback(make_netns.close)
        netns = make_netns()
        hosts = ending.enter_context(two_hosts(netns, make_netns, "vxlan", "ipv4"))
        netns.run("sysctl", "-qw", "net.ipv4.ip_forward=1")
        hosts.leave_flanneld_state()
        await hosts.join()
        async with hosts.cluster.dataplane("--audit-interval=600") as running:
            await running.until(peers=1)
            await hosts.cluster.quiet()
            await running.quiet()
            yield Scene(hosts, running)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenes() -> AsyncIterator[Shared[None, Scene]]:
    async with sharing(overlay, lambda scene: scene.hosts.objects()) as shared:
        yield shared


@pytest_asyncio.fixture(loop_scope="module")
async def scene(scenes: Shared[None, Scene]) -> AsyncIterator[Scene]:
    async with scenes.borrowed(None) as made:
        await made.running.forget_past()
        yield made


async def is_again(hosts: TwoHosts, before: list[str]) -> None:
    """Returns when the kernel's objects are these."""
    await eventually(lambda: asyncio.to_thread(hosts.objects), equals(before))


@pytest.mark.parametrize("what", REWRITES)
async def test_what_is_rewritten_is_put_right_at_once(scene: Scene, what: str) -> None:
    hosts, running = scene
    before = hosts.objects()
    with hosts.stream() as stream:
        async with stream:
            await asyncio.to_thread(hosts.cluster.run, REWRITES[what])
            await is_again(hosts, before)
            await running.quiet()
        assert len(stream.lost) < 100, "a second's worth"
    assert sum((await running.repairs()).values()) == 1


async def test_our_own_writes_and_what_the_kernel_learns_lead_to_no_comparison(scene: Scene) -> None:
    hosts, running = scene
    before = (await running.status()).last_resync_time
    for number in range(13, 43):
        subnet = f"10.5.{100 + number}.0/24"  # one that nobody else had: that would be compared anyway
        name = await hosts.cluster.join(f"n{number}", f"10.99.0.{number}", f"02:00:00:00:00:{number}", subnet)
        await hosts.cluster.leave(f"n{number}", name) if number % 2 else None
    await running.until(peers=16)
    assert (await running.status()).last_resync_time == before
    for nud in ("reachable", "stale"):  # as the kernel learns them: nothing of ours is there
        hosts.cluster.ip(f"neigh replace 10.5.200.9 lladdr 02:00:00:00:00:77 dev cni0 nud {nud}")
    assert await running.repairs() == {}
