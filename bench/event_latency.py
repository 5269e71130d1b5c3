"""How long one put to etcd takes until its route is in the kernel, among N peers; and a delete until it is gone.

One at a time, with a pause between; from before the put is written to etcd's socket until a netlink listener hears of
the route. The peer is a node of sixty lines, with etcd3's client and pyroute2's calls, beside
an empty kernel. The limit is etcd's own part: until a watch on a plain socket has it.
"""

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from bench.changes import Clock, News, Scene, Stage, first_change, naive, ours, row, watch_only
from bench.etcd import fill, running_etcd
from bench.result import Bench, Result, percentiles

_PATIENCE: Final = 5.0
"""A change that takes longer counts as lost."""
_PAUSES: Final = (0.005, 0.02)


async def _one(scene: Scene, clock: Clock, number: int, *, gone: bool) -> None:
    key, value = row(number)
    clock.sent(number, gone=gone)
    change = scene.etcd.delete(key) if gone else scene.etcd.put(key, value)
    left = clock.outstanding - 1

    def enough(heard: News) -> bool:
        clock.heard(heard)
        return clock.outstanding == left

    await scene.listener.hear(enough, _PATIENCE)
    await change
    await asyncio.sleep(random.uniform(*_PAUSES))  # noqa: S311 - jitter


async def _measure(stage: Stage, endpoint: str, peers: int, samples: int) -> tuple[Clock, Clock, dict[str, float]]:
    puts, deletes = Clock(), Clock()
    async with stage(endpoint) as scene:
        before = scene.cpu()
        for number in range(first_change(peers), first_change(peers) + samples):
            await _one(scene, puts, number, gone=False)
            await _one(scene, deletes, number, gone=True)
        after = scene.cpu()
    return puts, deletes, {name: after[name] - before[name] for name in after}


def _run(parameters: Mapping[str, int]) -> Result:
    peers, samples = parameters["peers"], parameters["samples"]
    with running_etcd() as endpoint:
        asyncio.run(fill(endpoint, peers))
        puts, deletes, cpu = asyncio.run(_measure(ours, endpoint, peers, samples))
        theirs, _, _ = asyncio.run(_measure(naive, endpoint, peers, samples))
        etcd, _, _ = asyncio.run(_measure(watch_only, endpoint, peers, samples))
    found, gone = percentiles(puts.milliseconds), percentiles(deletes.milliseconds)
    return Result(
        name="event_latency",
        parameters=parameters,
        unit="milliseconds, the median of puts",
        ours=found["p50_ms"],
        peers={"etcd3's client and pyroute2's calls": percentiles(theirs.milliseconds)["p50_ms"]},
        limits={"etcd, to a watch on a plain socket": percentiles(etcd.milliseconds)["p50_ms"]},
        less_is_better=True,
        cpu_seconds=sum(cpu.values()),
        figures={
            **found,
            **{f"delete_{name}": value for name, value in gone.items()},
            "lost": puts.outstanding + deletes.outstanding,
            **{f"{name}_cpu_ms_each": 1000 * spent / (2 * samples) for name, spent in cpu.items()},
        },
    )


EVENT_LATENCY: Final = Bench(
    name="event_latency",
    summary="one put to etcd until its route is in the kernel, beside etcd3's client and pyroute2",
    parameters={"peers": 1_000, "samples": 300},
    run=_run,
)
