"""Pings between all pods, none of which may be lost while something is disturbed."""

import asyncio
import time
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from lab.cluster import Pod
from lab.kubernetes.cluster import Cluster
from lab.kubernetes.trial import still_unreached
from lab.reach import reach
from lab.stream import Stream

_AFTERWARDS: Final = 0.2
"""Seconds of pings after a disturbance."""


@dataclass
class Figures:
    """What the tests measured, for the last lines of a run."""

    clusters: int = 0
    """One, and one more for every one that a test did not leave whole."""
    pings: int = 0
    lost: int = 0
    floods: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    """By what was waited for."""

    def __str__(self) -> str:
        rows = [f"{seconds:6.1f} s  {what}" for what, seconds in self.seconds.items()]
        return "\n".join(
            [
                f"{self.pings:,} pings in {self.floods} disturbances of {self.clusters} clusters, {self.lost} lost",
                *rows,
            ]
        )


FIGURES: Final = Figures()


@asynccontextmanager
async def flood(
    cluster: Cluster, what: str, without: Container[str] = (), beside: Sequence[Pod] = ()
) -> AsyncIterator[None]:
    """None is lost meanwhile; before and afterwards every pod reaches every other and the outside host.

    `what` is the row of the figures that says how long it took. The pods of the nodes `without` are not in
    the flood; those `beside` the cluster are.
    """
    await everybody_reaches_everybody(cluster, beside)
    pods = [*(pod for pod in await cluster.pods() if pod.host.name not in without), *beside]
    start = time.monotonic()
    with reach(pods) as reaching:
        async with Stream(reaching.paths()) as stream:
            yield
            FIGURES.seconds[what] = time.monotonic() - start
            await asyncio.sleep(_AFTERWARDS)
    FIGURES.floods += 1
    FIGURES.pings += stream.sent
    FIGURES.lost += len(stream.lost)
    paths = sorted({f"{lost.path.source} to {lost.path.target}" for lost in stream.lost})
    assert not stream.lost, f"{len(stream.lost)} of {stream.sent} pings in {stream.outage:.2f} s: {', '.join(paths)}"
    await everybody_reaches_everybody(cluster, beside)


async def everybody_reaches_everybody(cluster: Cluster, beside: Sequence[Pod] = ()) -> None:
    """Pods, and the outside host, which sees the node's address."""
    assert await still_unreached([*await cluster.pods(), *beside]) == []
