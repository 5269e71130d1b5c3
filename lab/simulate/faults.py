"""The acts of a simulation, in their order: what happens to the nodes, the lease services and etcd."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from lab.simulate.processes import now
from lab.simulate.scene import Scene, SimulatedNode, Told

_BEAT: Final = 3.0
"""Seconds between two markers while something goes on."""
_SERVICE_REST: Final = 1.0
"""Seconds between the restarts of two lease services; less in a short simulation."""


@dataclass
class Act:
    """One act, and what came of it. Times are seconds since the start of the simulation."""

    name: str
    words: str
    began: float
    calm: float = 0.0
    """When the disturbance was over."""
    ended: float = 0.0
    """When every node had everything."""
    leased: Sequence[float] = ()
    """Seconds after the disturbance at which each node that was started in this act had its lease, sorted."""
    told: Sequence[float] = ()
    """Seconds after the disturbance at which each node had everything, sorted. Of churn: after each marker."""
    missing: Sequence[str] = ()
    tables: Sequence[str] = ()
    """Nodes whose table was not what etcd has."""
    kernels: Sequence[str] = ()
    """Nodes whose kernel was not."""
    strays: Sequence[str] = ()
    """Leases in etcd that are no node's, or the second of one."""
    leases: int = 0
    checked: int = 0
    """Kernels that were compared."""
    cpu: Mapping[str, float] = field(default_factory=dict)
    """CPU seconds of a tier, by name."""
    messages: Mapping[str, int] = field(default_factory=dict)
    """Sent by the lease services of a tier; of the nodes, received."""
    bytes: Mapping[str, int] = field(default_factory=dict)
    """Size of these messages, by tier."""
    reports: int = 0
    """Sent by the nodes: how far they are."""

    @property
    def is_right(self) -> bool:
        """Every node had everything in time, and nothing else."""
        return not (self.missing or self.tables or self.kernels or self.strays)


Disturbance: TypeAlias = Callable[[Scene], Awaitable[None]]


async def start(scene: Scene, act: Act) -> None:
    """All nodes start at once, and none has a lease."""
    began = now()
    await scene.start([scene.new_node() for _ in range(scene.options.nodes)])
    act.calm = began - scene.began
    await _leased(scene, act)
    _take(act, await scene.told(began))


async def churn(scene: Scene, act: Act) -> None:
    """Nodes come, go and change all the time; every few seconds one change is timed."""
    seconds, found, missing = scene.options.seconds / 4, list[float](), list[str]()
    async with changing(scene):
        until = now() + seconds
        while now() < until:
            told = await scene.told()
            found += told.seconds
            missing += told.missing
            await asyncio.sleep(min(_BEAT, max(0.0, until - now())))
    await scene.leased()
    last = await scene.told()
    act.calm = now() - scene.began
    act.told, act.missing = sorted((*found, *last.seconds)), (*missing, *last.missing)


@asynccontextmanager
async def changing(scene: Scene) -> AsyncIterator[None]:
    """Each second so many nodes are replaced or get another address, until the block ends."""
    under_way = dict[str, asyncio.Task[None]]()

    async def change(node: SimulatedNode) -> None:
        if random.random() < 0.5:  # noqa: S311 - no secret
            await scene.replace(node)
        else:
            await scene.restart([node], renumber=True)
        del under_way[node.name]

    async def go_on() -> None:
        while True:
            await asyncio.sleep(random.expovariate(scene.options.churn))
            if names := list(scene.nodes.keys() - under_way.keys()):
                name = random.choice(names)  # noqa: S311
                under_way[name] = asyncio.create_task(change(scene.nodes[name]))

    going = asyncio.create_task(go_on() if scene.options.churn else asyncio.sleep(0))
    try:
        yield
    finally:
        going.cancel()
        await asyncio.gather(*under_way.values())


async def services(scene: Scene) -> None:
    """Each lease service ends and is started again, one after the other, from etcd down."""
    for service in scene.services:
        await service.restart()
        await asyncio.sleep(min(_SERVICE_REST, scene.options.seconds / 60))


async def nodes(scene: Scene) -> None:
    """Every node ends and is started again, one after the other."""
    await scene.restart(list(scene.nodes.values()), over=0.15 * scene.options.seconds)


async def store(scene: Scene) -> None:
    """etcd is killed, and started again with its data after a while; meanwhile a tenth of the nodes restart."""
    scene.etcd.stop()
    back = now() + scene.options.away
    some = list(scene.nodes.values())[:: max(1, min(10, len(scene.nodes)))]
    await scene.restart(some, over=scene.options.away / 2)
    await asyncio.sleep(max(0.0, back - now()))
    scene.etcd.start()


async def partition(scene: Scene) -> None:
    """Half of the lease services that serve nodes are silent for a while, and their nodes alone; the rest goes on."""
    half = scene.leaves[: len(scene.leaves) // 2] or scene.crowds[: len(scene.crowds) // 2]
    silent = {id(each) for each in half}
    others = [n for n in scene.nodes.values() if id(n.service) not in silent and id(n.crowd) not in silent]
    for each in half:
        each.freeze()
    back = now() + scene.options.away
    try:
        some = random.sample(others, min(len(others), max(1, len(others) // 20)))
        await scene.restart(some, over=scene.options.away / 2, renumber=True)
        await asyncio.sleep(max(0.0, back - now()))
    finally:
        for each in half:
            each.thaw()


async def renumber(scene: Scene) -> None:
    """Every node comes back after a reboot with another public address."""
    await scene.restart(list(scene.nodes.values()), over=0.05 * scene.options.seconds, renumber=True)


@dataclass(frozen=True, slots=True)
class Fault:
    """A disturbance of a simulation that runs."""

    words: str
    disturb: Disturbance
    writes_all: bool = False
    """Every node publishes something else, so that nobody has everything before all have acquired."""


FAULTS: Final[Mapping[str, Fault]] = {
    "services": Fault("lease services restarted, one by one", services),
    "nodes": Fault("nodes restarted, one by one", nodes),
    "store": Fault("etcd away", store),
    "partition": Fault("half of the nodes cut off", partition),
    "renumber": Fault("all nodes renumbered", renumber, writes_all=True),
}


async def happen(scene: Scene, act: Act, fault: Fault) -> None:
    """A fault, and how long each node takes after it to have what is written then."""
    await fault.disturb(scene)
    calm = now()
    act.calm = calm - scene.began
    if not fault.writes_all:
        _take(act, await scene.told(calm))
    await _leased(scene, act)
    told = await scene.told(calm)
    if fault.writes_all or told.missing:
        _take(act, told)


async def _leased(scene: Scene, act: Act) -> None:
    began, calm = scene.began + act.began, scene.began + act.calm
    act.leased = [max(0.0, at - calm) for at in await scene.leased() if at >= began]


def _take(act: Act, told: Told) -> None:
    act.told, act.missing = told.seconds, told.missing
