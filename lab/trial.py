"""The trial of a cluster: everybody reaches everybody, also while services are killed."""

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lab import look
from lab.cluster import Cluster
from lab.options import Options
from lab.reach import Answer, Matrix, Outside, Reach, unreached
from lab.stream import Lost, Stream
from lab.supervise import Supervised


@dataclass(frozen=True, slots=True)
class Kill:
    """A service was killed with SIGKILL, and came back."""

    title: str
    at: float
    """On the clock of time.monotonic(), until `back`, when the whole cluster was ready again."""
    back: float
    changes: int
    """What a dataplane had to change in the kernel when it came back; 0 for other services."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the trial found."""

    pod_pings: Matrix
    masquerade: Outside
    kills: tuple[Kill, ...]
    lost: tuple[Lost, ...]
    ready_seconds: float
    """From the start of the first process until every service was ready."""

    def failures(self) -> Iterator[str]:
        """What went wrong, one sentence each; none: the trial is passed."""
        yield from unreached(self.pod_pings, self.masquerade)
        for kill in self.kills:
            if kill.changes:
                yield f"the {kill.title} came back and had to change {kill.changes} kernel objects"
        for when, lost in self._lost_when().items():
            paths = ", ".join(sorted({f"{one.path.source}→{one.path.target}" for one in lost}))
            yield f"{len(lost)} pings were lost {when} ({paths})"

    def _lost_when(self) -> dict[str, list[Lost]]:
        lost: dict[str, list[Lost]] = {}
        for one in self.lost:
            away = (f"while the {kill.title} was away" for kill in self.kills if kill.at <= one.sent < kill.back)
            lost.setdefault(next(away, "while every service was there"), []).append(one)
        return lost

    def write(self, options: Options, path: Path) -> None:
        """Writes the figures as JSON."""
        figures = {
            "nodes": options.nodes,
            "backend": options.backend,
            "store": options.store,
            "pod_pings": _count(list(self.pod_pings.values())),
            "masquerade": _count(list(self.masquerade.values())),
            "restart_lost": len(self.lost),
            "ready_seconds": round(self.ready_seconds, 3),
        }
        path.write_text(json.dumps(figures) + "\n")


async def kill_each(
    cluster: Cluster, reach: Reach, notice: Callable[[str, int], None]
) -> tuple[tuple[Kill, ...], int, tuple[Lost, ...]]:
    """Kills every service once, one after the other, under a stream of pings; `notice` hears of each.

    Returns the kills, the number of pings sent, and those that were lost. Raises LabFailed if one does not return.
    """
    kills = []
    async with Stream(reach.paths()) as stream:
        await asyncio.sleep(0.2)  # the stream is there before the first kill, and after the last one
        for number, service in enumerate(cluster.services, start=1):
            notice(service.program.title, number)
            kills.append(await _kill(cluster, service))
        await asyncio.sleep(0.2)
    return tuple(kills), stream.sent, tuple(stream.lost)


async def _kill(cluster: Cluster, service: Supervised) -> Kill:
    at = time.monotonic()
    await service.kill()
    await cluster.all_ready()
    back = time.monotonic()
    program = service.program
    changes = (await look.dataplane(program.address)).last_resync_changes if program.name == "dataplane" else 0
    return Kill(program.title, at, back, changes)


def _count(answers: list[Answer]) -> dict[str, int]:
    return {"ok": sum(answer.is_good for answer in answers), "total": len(answers)}
