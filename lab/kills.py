"""Kills every service under a stream of pings: nobody in the pods should notice, nor the kernel."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from lab import look
from lab.changes import ChangeWatch, kernel_of
from lab.cluster import Cluster
from lab.reach import Reach
from lab.stream import Lost, Stream
from lab.supervise import Supervised


@dataclass(frozen=True, slots=True)
class Kill:
    """A service was killed with SIGKILL, and came back."""

    title: str
    at: float
    """When it was killed, on the clock of time.monotonic()."""
    back: float
    """When every service was ready again."""
    changes: int
    """Changes of the overlay's kernel objects meanwhile, on all hosts: there is nothing to change."""


@dataclass(frozen=True, slots=True)
class Kills:
    """All of them, and what became of the stream."""

    each: tuple[Kill, ...]
    sent: int
    lost: tuple[Lost, ...]
    differs: tuple[str, ...] = ()
    """What is gone from the kernels of the hosts, or new there."""

    @property
    def slowest(self) -> float:
        """The longest time, in seconds, until every service was ready again."""
        return max(kill.back - kill.at for kill in self.each)

    @property
    def changes(self) -> int:
        """Changes of kernel objects, over all of them."""
        return sum(kill.changes for kill in self.each)

    def lost_when(self) -> dict[str, list[Lost]]:
        """The lost pings by what was going on, in words."""
        lost: dict[str, list[Lost]] = {}
        for one in self.lost:
            away = (f"while the {kill.title} was away" for kill in self.each if kill.at <= one.sent < kill.back)
            lost.setdefault(next(away, "while every service was there"), []).append(one)
        return lost


async def kill_each(cluster: Cluster, reach: Reach, notice: Callable[[str], None]) -> Kills:
    """Kills every service once, one after the other; `notice` hears of each. Raises LabFailed if one stays away."""
    kills = []
    before = await _kernels(cluster)
    with ExitStack() as stack:
        watches = [stack.enter_context(ChangeWatch(host.namespace)) for host in cluster.hosts]
        async with Stream(reach.paths()) as stream:
            await asyncio.sleep(0.2)  # the stream is there before the first kill, and after the last one
            for service in cluster.services:
                notice(service.program.title)
                kills.append(await _kill(cluster, service, watches))
            await asyncio.sleep(0.2)
    after = await _kernels(cluster)
    differs = [f"{line} is gone" for line in before - after] + [f"{line} is new" for line in after - before]
    return Kills(tuple(kills), stream.sent, tuple(stream.lost), tuple(sorted(differs)))


async def _kernels(cluster: Cluster) -> frozenset[str]:
    """Returns what the kernels of all hosts have, a line each."""
    found = [(host.name, await asyncio.to_thread(kernel_of, host.namespace)) for host in cluster.hosts]
    return frozenset(f"{name}: {line}" for name, lines in found for line in lines)


async def _kill(cluster: Cluster, service: Supervised, watches: Sequence[ChangeWatch]) -> Kill:
    before, at = sum(watch.look() for watch in watches), time.monotonic()
    await service.kill()
    await cluster.all_ready()
    changes, back = sum(watch.look() for watch in watches) - before, time.monotonic()
    program = service.program
    if "dataplane" in program.services:  # what it says must agree with what the kernel said
        changes = max(changes, (await look.dataplane(program.address_of("dataplane"))).last_resync_changes)
    return Kill(program.title, at, back, changes)
