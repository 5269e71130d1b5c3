"""What ONCE=1 tries: every container of Flannelette is killed, and a node's power fails, under a stream of pings."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from lab.cluster import Pod
from lab.kubernetes.cluster import Cluster, Container
from lab.reach import reach, unreached
from lab.stream import Lost, Stream


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of the pings."""

    sent: int
    lost: Sequence[Lost]
    began: float
    """When the first ping was sent, on the clock of Lost."""
    unreached: Sequence[str] = ()
    """Sentences about who does not reach whom afterwards; empty: all do."""

    @property
    def failures(self) -> list[str]:
        """Returns a sentence for each failure."""
        lost: dict[str, list[float]] = {}
        for each in self.lost:
            way = f"{each.path.source} to {each.path.target} ({each.path.address})"
            lost.setdefault(way, []).append(each.sent - self.began)
        return [
            *(f"{len(at)} pings were lost, {min(at):.1f} to {max(at):.1f} s in: {way}" for way, at in lost.items()),
            *self.unreached,
        ]


async def kill_each(cluster: Cluster, pods: Sequence[Pod], notice: Callable[[str], None]) -> Outcome:
    """Kills every container of Flannelette with SIGKILL, one after the other. Raises LabFailed if one stays away."""
    sidecars = [each for each in await cluster.containers() if each.name != "web"]
    nodes = {node.name: node for node in cluster.nodes}
    with reach(pods) as reaching:
        began = time.monotonic()
        async with Stream(reaching.paths()) as stream:
            for number, each in enumerate(sidecars, 1):
                notice(f"{number} of {len(sidecars)}: {each.name} of {each.node}")
                await nodes[each.node].run("ctr", "-n", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", each.id)
                await cluster.until_replaced([each])
            await asyncio.sleep(0.2)
        return Outcome(stream.sent, stream.lost, began, await still_unreached(pods))


async def fail_and_boot(cluster: Cluster, pods: Sequence[Pod]) -> Outcome:
    """The power of the last node fails, and it boots again: the other nodes lose no ping, and it is back whole."""
    node = cluster.nodes[-1]
    others = [pod for pod in pods if pod.host != node.host]
    containers: list[Container] = [each for each in await cluster.containers() if each.node == node.name]
    with reach(others) as reaching:
        began = time.monotonic()
        async with Stream(reaching.paths()) as stream:
            node.fail()
            await node.plug_again()
            await node.boot()
            await cluster.until_replaced(containers)
    return Outcome(stream.sent, stream.lost, began, await still_unreached(await cluster.pods()))


async def under_pings(pods: Sequence[Pod], change: Awaitable[None]) -> Outcome:
    """What becomes of pings between all pods while something is changed."""
    before = await still_unreached(pods)
    with reach(pods) as reaching:
        began = time.monotonic()
        async with Stream(reaching.paths()) as stream:
            await change
            await asyncio.sleep(0.2)
    return Outcome(stream.sent, stream.lost, began, before or await still_unreached(pods))


async def still_unreached(pods: Sequence[Pod], seconds: float = 10.0) -> list[str]:
    """Returns who does not reach whom even after that time; a new bridge's IPv6 address answers after a second or
    two.
    """
    end = time.monotonic() + seconds
    with reach(pods) as reaching:
        while found := list(unreached(await reaching.matrix(), await reaching.outside())):
            if time.monotonic() > end:
                break
        return found
