"""The run of a simulation: one act after another, with the time, CPU, memory and messages of each."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from lab.simulate import faults
from lab.simulate.faults import Act
from lab.simulate.options import Options
from lab.simulate.processes import now
from lab.simulate.scene import Scene, running

_SAMPLE: Final = 1.0


@dataclass(frozen=True, slots=True)
class Sample:
    """What each tier took up to a moment."""

    at: float
    """Seconds since the start of the simulation."""
    cpu: Counter[str]
    """Seconds of all processes of a tier."""
    mib: Counter[str]
    """MiB in memory of all processes of a tier together, by tier."""


class Received(NamedTuple):
    """What went over the wire up to a moment."""

    messages: Counter[str]
    """Messages by tier: sent by lease services, received by nodes."""
    bytes: Counter[str]
    """Bytes of these messages, by tier."""
    reports: int
    """Reports that nodes have sent."""


@dataclass
class Outcome:
    """What a simulation has shown."""

    options: Options
    acts: list[Act] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    """Tasks of nodes that ended."""

    @property
    def is_right(self) -> bool:
        """No node ever differed from the store."""
        return not self.failures and all(act.is_right for act in self.acts)


async def simulate(outcome: Outcome, directory: Path, tell: Callable[[Act], None]) -> None:
    """The whole simulation, into `outcome`; `tell` is called after each act. Raises ProcessFailed."""
    options = outcome.options
    async with running(options, directory) as scene, _sampled(scene, outcome):

        async def act(name: str, words: str, do: Callable[[Act], Awaitable[None]]) -> None:
            one = Act(name, words, now() - scene.began)
            before, received = _cpu(scene), await _received(scene)
            await do(one)
            one.ended = now() - scene.began
            one.cpu, after = dict(_cpu(scene) - before), await _received(scene)
            one.messages, one.bytes = dict(after.messages - received.messages), dict(after.bytes - received.bytes)
            one.reports = after.reports - received.reports
            await _compare(scene, one)
            outcome.acts.append(one)
            tell(one)

        await scene.told()  # the first lease is the marker's
        await act("start", "all nodes start at once", partial(faults.start, scene))
        if options.churn:
            words = f"churn, {options.churn:g} node{'s' * (options.churn != 1)} a second"
            await act("churn", words, partial(faults.churn, scene))
        for name in options.faults:
            fault = faults.FAULTS[name]
            await act(name, fault.words, partial(faults.happen, scene, fault=fault))
        for figures in await scene.ask("figures"):
            outcome.failures += figures["failures"]


@asynccontextmanager
async def _sampled(scene: Scene, outcome: Outcome) -> AsyncIterator[None]:
    async def sample() -> None:
        while True:
            mib = Counter[str]()
            for process in scene.processes():
                mib[process.tier] += int(process.resident_mib)
            outcome.samples.append(Sample(now() - scene.began, _cpu(scene), mib))
            await asyncio.sleep(_SAMPLE)

    task = asyncio.create_task(sample())
    try:
        yield
    finally:
        task.cancel()


def _cpu(scene: Scene) -> Counter[str]:
    found = Counter[str]()
    for process in scene.processes():
        found[process.tier] += process.cpu_seconds  # type: ignore[assignment]  # a Counter of seconds
    return found


async def _received(scene: Scene) -> Received:
    messages, size = Counter[str](), Counter[str]()
    for service in scene.services:
        sent = await service.sent()
        messages[service.tier] += sent["messages"]
        size[service.tier] += sent["bytes"]
    crowds = await scene.ask("figures")
    messages["nodes"], size["nodes"] = (sum(figures[name] for figures in crowds) for name in ("messages", "bytes"))
    return Received(messages, size, sum(figures["reports"] for figures in crowds))


async def _compare(scene: Scene, act: Act) -> None:
    said = await scene.ask("compare")
    act.leases, act.strays = await scene.stored()
    act.checked = sum(each["checked"] for each in said)
    act.tables = [name for each in said for name in each["tables"]]
    act.kernels = [name for each in said for name in each["kernels"]]
