"""A cluster in which nodes come, go and change all the time: RATE changes a second among N peers, for some seconds.

Of few peers fewer: where half of the leases go within two seconds, the lease service holds that back and asks again.

A third of the changes are new leases, a third are new MACs of leases there are, a third are leases that go. Latency
is that of those that come and go (a new MAC changes no route), as in event_latency but with the others under way.
Afterwards `ip` and `bridge` count whether the kernel has exactly what etcd has. The peer is that of event_latency.
"""

import asyncio
import time
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench.changes import Clock, News, Scene, Stage, destination, first_change, naive, ours
from bench.etcd import fill, running_etcd
from bench.host import check, routes
from bench.result import Bench, Result, percentiles

_LIVES: Final = 30
"""A lease goes so many new ones after it came; its MAC is changed halfway."""
_SETTLE_SECONDS: Final = 5.0
_REST_SECONDS: Final = 0.3
"""Seconds to wait for changes that no listener for routes hears of."""


@dataclass(frozen=True, slots=True)
class Churn:
    """What came of it."""

    clock: Clock
    """A lease that went before it was programmed is not heard of; that is no loss."""
    lost: int
    """Routes that are missing in the end, or there without a lease."""
    cores: dict[str, float]
    """Percent of a core, by process."""
    memory: dict[str, float]


async def _churn(scene: Scene, clock: Clock, first: int, rate: int, seconds: int) -> range:
    """Returns the leases of its own that there are in the end, by number."""
    began, under_way, due = time.monotonic(), set[asyncio.Task[None]](), 0
    rounds = max(1, rate * seconds // 3)
    for number in range(rounds):
        changes: list[tuple[Coroutine[Any, Any, None], bool | None, int]] = []
        changes.append((scene.put(first + number), False, first + number))
        if number >= _LIVES:
            gone, changed = first + number - _LIVES, first + number - _LIVES // 2
            changes += [(scene.put(changed, 1), None, changed), (scene.delete(gone), True, gone)]
        for change, is_gone, which in changes:
            if is_gone is not None:
                clock.sent(which, gone=is_gone)
            under_way.add(asyncio.create_task(change))
            due += 1
            await asyncio.sleep(max(0.0, began + due / rate - time.monotonic()))
    await asyncio.gather(*under_way)
    return range(first + max(0, rounds - _LIVES), first + rounds)


async def _measure(stage: Stage, endpoint: str, there: int, first: int, rate: int, seconds: int) -> Churn:
    clock = Clock()

    def heard(one: News) -> bool:
        clock.heard(one)
        return False

    async with stage(endpoint) as scene:
        listening = asyncio.create_task(scene.listener.hear(heard, 10_000))
        before, began = scene.cpu(), time.monotonic()
        left = await _churn(scene, clock, first, rate, seconds)
        after, lasted = scene.cpu(), time.monotonic() - began
        listening.cancel()
        await asyncio.wait([listening])
        if clock.outstanding:
            await scene.listener.hear(lambda one: heard(one) or not clock.outstanding, _SETTLE_SECONDS)
        await asyncio.sleep(_REST_SECONDS)
        assert scene.namespace is not None  # noqa: S101 - both make routes
        expected = {destination(number) for number in (*range(1, there + 1), *left)}
        lost = len(expected ^ routes(scene.namespace))
        if not lost:
            check(stage.__name__, scene.namespace, len(expected))
        cores = {name: 100 * (after[name] - before[name]) / lasted for name in after}
        return Churn(clock, lost, cores, scene.memory())


def _run(parameters: Mapping[str, int]) -> Result:
    peers, seconds = parameters["peers"], parameters["seconds"]
    rate = min(parameters["rate"], max(3, peers // 2))
    with running_etcd() as endpoint:
        asyncio.run(fill(endpoint, peers))
        mine = asyncio.run(_measure(ours, endpoint, peers, first_change(peers), rate, seconds))
        theirs = asyncio.run(_measure(naive, endpoint, 0, first_change(peers) + rate * seconds, rate, seconds))
    found = percentiles(mine.clock.milliseconds)
    return Result(
        name="churn",
        parameters={**parameters, "rate": rate},
        unit="milliseconds, the median",
        ours=found["p50_ms"],
        peers={"etcd3's client and pyroute2's calls": percentiles(theirs.clock.milliseconds)["p50_ms"]},
        less_is_better=True,
        cpu_seconds=sum(mine.cores.values()) * seconds / 100,
        figures={
            **found,
            "lost": mine.lost,
            "unheard": mine.clock.outstanding,
            **{f"{name}_percent_of_a_core": share for name, share in (mine.cores | theirs.cores).items()},
            **{f"{name}_mib": mib for name, mib in mine.memory.items()},
        },
        peak_rss_mib=max(mine.memory.values()),
    )


CHURN: Final = Bench(
    name="churn",
    summary="leases that come, change and go all the time: latency, CPU, and whether any is lost",
    parameters={"peers": 1_000, "rate": 200, "seconds": 10},
    run=_run,
)
