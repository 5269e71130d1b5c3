"""How long after the last of many puts at once the last route is in the kernel, among N peers; and whether all are.

All puts are under way at once. `ours` is from when etcd has confirmed the last put, in the middle one of the bursts;
1 ms is as good as it gets. The peer is a node of sixty lines, with etcd3's client and
pyroute2's calls, beside an empty kernel. The limit is a watch on a plain socket, until it has seen the last lease.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.changes import Clock, News, Stage, destination, first_change, naive, ours, row, watch_only
from bench.etcd import fill, running_etcd
from bench.host import check, routes
from bench.result import Bench, Result

_PATIENCE: Final = 30.0
_LEAST: Final = 0.001
"""Least time that is told, in seconds: who is ready before etcd's answer to the last put has come is told apart no
further."""


@dataclass(frozen=True, slots=True)
class Burst:
    """The times of one burst, in seconds."""

    after_last_put: float
    whole: float
    lost: int
    cpu: float


async def _measure(stage: Stage, endpoint: str, peers: int, changes: int, bursts: int, there: int) -> list[Burst]:
    found = []
    async with stage(endpoint) as scene:
        for number in range(bursts):
            first, clock = first_change(peers) + number * changes, Clock()
            heard: list[float] = []

            def enough(one: News, clock: Clock = clock, heard: list[float] = heard) -> bool:
                clock.heard(one)
                heard.append(one.at)
                return clock.outstanding == 0

            rows = [row(each) for each in range(first, first + changes)]
            cpu, began = sum(scene.cpu().values()), time.monotonic()
            for each in range(first, first + changes):
                clock.sent(each, gone=False)
            puts = asyncio.gather(*(scene.etcd.put(*each) for each in rows))
            listening = asyncio.create_task(scene.listener.hear(enough, _PATIENCE))
            await puts
            confirmed = time.monotonic()
            await listening
            last = heard[-1] if heard else began + _PATIENCE
            spent = sum(scene.cpu().values()) - cpu
            await asyncio.sleep(1.0)
            expected = {
                destination(each) for each in (*range(1, there + 1), *range(first_change(peers), first + changes))
            }
            lost = len(expected ^ routes(scene.namespace)) if scene.namespace else clock.outstanding
            found.append(Burst(max(0.0, last - confirmed), last - began, lost, spent))
        if scene.namespace and not any(one.lost for one in found):
            check(stage.__name__, scene.namespace, there + bursts * changes)
    return found


def _middle(bursts: list[Burst]) -> Burst:
    return sorted(bursts, key=lambda one: one.after_last_put)[(len(bursts) - 1) // 2]


def _run(parameters: Mapping[str, int]) -> Result:
    peers, changes, rounds = parameters["peers"], parameters["changes"], parameters["rounds"]
    with running_etcd() as endpoint:
        asyncio.run(fill(endpoint, peers))
        found = asyncio.run(_measure(ours, endpoint, peers, changes, rounds, peers))
        # The same leases again would be no change, so the peer gets others, as if there were more peers.
        theirs = asyncio.run(_measure(naive, endpoint, peers + rounds * changes, changes, 1, 0))
        etcd = asyncio.run(_measure(watch_only, endpoint, peers + (rounds + 1) * changes, changes, rounds, 0))
    middle, limit = _middle(found), _middle(etcd)
    return Result(
        name="burst",
        parameters=parameters,
        unit="milliseconds after the last put",
        ours=1000 * max(middle.after_last_put, _LEAST),
        peers={"etcd3's client and pyroute2's calls": 1000 * theirs[0].after_last_put},
        limits={"etcd, to a watch on a plain socket": 1000 * max(limit.after_last_put, _LEAST)},
        less_is_better=True,
        cpu_seconds=middle.cpu,
        figures={
            "whole_ms": 1000 * min(one.whole for one in found),
            "etcd_whole_ms": 1000 * min(one.whole for one in etcd),
            "worst_ms": 1000 * max(one.after_last_put for one in found),
            "lost": sum(one.lost for one in found),
            "peer_lost": theirs[0].lost,
        },
    )


BURST: Final = Bench(
    name="burst",
    summary="many puts at once until all of their routes are in the kernel",
    parameters={"peers": 1_000, "changes": 1_000, "rounds": 3},
    run=_run,
)
