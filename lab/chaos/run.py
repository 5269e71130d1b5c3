"""The run of chaos: faults, one after another or two at once, and after each the wait until it is repaired."""

import asyncio
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Final

from lab.chaos.certificates import Certificates
from lab.chaos.outcome import MARGIN, Happened, Outcome
from lab.chaos.resources import Growths
from lab.chaos.scene import HOSTS, Hit, NoEffect, Scene, prepared
from lab.chaos.table import CHANGE, FAULTS
from lab.cluster import Cluster
from lab.inside import CONTEXTS
from lab.options import Options as LabOptions
from lab.reach import Reach, reach, unreached
from lab.stream import Stream
from lab.supervise import Supervised
from lab.topology import Host

INTERVAL: Final = 0.05
"""Seconds between two pings on a path."""
_PAUSE: Final = (0.2, 2.0)
_TWO_AT_ONCE: Final = 0.4
"""How often a fault of a host has company on another host."""
_PATIENCE: Final = 3.0
"""So many times as long as the table allows is waited; then the run is over."""
_SILENT: Final = 180.0
"""Seconds until the services say at the end that nothing is wrong."""


def schedule(
    seed: str, names: Sequence[str], hosts: Sequence[Host], backend: str, *, is_full: bool
) -> Iterator[list[tuple[str, Hit]]]:
    """What happens together, for ever. Each fault happens once before one happens twice."""
    chance, deck = Random(seed), list[str]()  # noqa: S311 - it shall be foretold

    def draw(places: list[Host]) -> tuple[str, Hit]:
        if not deck:
            deck.extend(names)
            chance.shuffle(deck)
        name = deck.pop()
        fault = FAULTS[name]
        usable = [host for host in places if fault.may_hit(host, is_last=host == hosts[-1])]
        host = chance.choice(usable or places)
        peer = chance.choice([other for other in hosts if other != host])
        own = Random(chance.random())  # noqa: S311
        return name, Hit(host, peer, chance.uniform(*fault.lasts), own, is_full, backend)

    while True:
        together = [draw(list(hosts))]
        wants_two = chance.random() < _TWO_AT_ONCE
        name, first = together[0]
        if wants_two and not FAULTS[name].is_alone and deck and not FAULTS[deck[-1]].is_alone:
            others = [host for host in hosts if host not in (first.host, hosts[-1])]
            together.append(draw(others))
        yield together


class Run:
    """One run; `tell` hears of each fault that is over."""

    def __init__(self, outcome: Outcome, directory: Path, tell: Callable[[Happened, int], None]) -> None:
        self._outcome = outcome
        self._options = outcome.options
        self._directory = directory
        self._tell = tell
        self._growths = Growths()

    async def run(self, group: asyncio.TaskGroup, step: Callable[[str], None]) -> None:
        """Builds the cluster, and lets it suffer; whatever happens, no process is left."""
        died: asyncio.Queue[tuple[Supervised, int]] = asyncio.Queue()
        lab = LabOptions(nodes=HOSTS, backend=self._options.backends[0], store="etcd")
        certificates = Certificates(self._directory)
        changed = prepared(self._directory, certificates)
        cluster = Cluster(lab, self._directory, group, lambda *death: died.put_nowait(death), changed)
        scene = Scene(cluster, certificates, died)
        try:
            step("building the cluster")
            await cluster.build()
            await scene.prepare()
            await cluster.configure()
            await cluster.start_leases()
            await cluster.start_hosts()
            pods = await cluster.start_pods()
            await scene.remember()
            await scene.until_right(cluster.hosts, store=True)
            with reach(pods) as reaching:
                step("every kernel is as desired; pings and faults begin")
                await self._suffer(scene, reaching, step)
        finally:
            await cluster.stop()
            if self._options.keep:
                _keep(self._directory, self._options.keep)
            scene.tear_down()

    async def _suffer(self, scene: Scene, reaching: Reach, step: Callable[[str], None]) -> None:
        outcome, options = self._outcome, self._options
        outcome.began, stream = time.monotonic(), Stream(reaching.paths(), INTERVAL)
        try:
            async with stream:
                await asyncio.sleep(MARGIN)
                for number, backend in enumerate(options.backends):
                    if backend != scene.backend:
                        hit = Hit(scene.hosts[0], scene.hosts[1], 0.0, Random(), options.is_full, backend)  # noqa: S311
                        await self._happen(scene, [(CHANGE, hit)], stream)
                    end = outcome.began + 60 * options.minutes * (number + 1) / len(options.backends)
                    names = [name for name in options.faults if FAULTS[name].concerns(backend) and name != CHANGE]
                    seed = f"{options.seed} {number}"
                    plan = schedule(seed, names, scene.hosts, backend, is_full=options.is_full)
                    while time.monotonic() < end:
                        await self._happen(scene, next(plan), stream)
                step("no more faults; waiting for the last repairs")
                await self._judge(scene, reaching)
        finally:
            outcome.ended = time.monotonic()
            outcome.growths, outcome.sent, outcome.lost = self._growths.all, stream.sent, stream.lost

    async def _happen(self, scene: Scene, together: list[tuple[str, Hit]], stream: Stream) -> None:
        """Lets faults happen at the same time, and returns when all are over."""
        async with asyncio.TaskGroup() as group:
            now = time.monotonic()
            each = [Happened(name, hit, now, scene.backend) for name, hit in together]
            self._outcome.each += each
            for happened in each:
                group.create_task(self._suffer_one(scene, happened))
        await asyncio.sleep(MARGIN)
        for service, code in scene.deaths():
            each[0].failures.append(f"the {service.program.title} died (exit code {code})")
        for happened in each:
            self._tell(happened, sum(happened.allows(lost) for lost in stream.lost))
        leaves = {happened.name: happened.fault.leaves for happened in each}
        self._growths.look(scene.cluster.services, time.monotonic(), leaves)
        low, high = _PAUSE
        await asyncio.sleep(each[0].hit.chance.uniform(low, high))

    async def _suffer_one(self, scene: Scene, happened: Happened) -> None:
        fault, hit = happened.fault, happened.hit
        try:
            async with fault.act(scene, hit):
                await asyncio.sleep(hit.seconds)
        except NoEffect as error:
            happened.failures.append(f"has no effect: {error}")
        happened.undone = time.monotonic()
        hosts = scene.hosts if fault.is_store else (hit.host,)
        try:
            async with asyncio.timeout(_PATIENCE * fault.within):
                await scene.until_right(hosts, store=fault.is_store)
        except TimeoutError:
            found = [*await scene.wrong(hosts), *(await scene.wrong_leases() if fault.is_store else [])]
            text = "; ".join(found) or "a service is not ready"
            raise Stuck(f"{happened.name} at {hit.host.name} is not repaired: {text}") from None
        happened.right = time.monotonic()
        if happened.repair > fault.within:
            happened.failures.append(f"repaired after {happened.repair:.1f} s, later than {fault.within:.0f} s")

    async def _judge(self, scene: Scene, reaching: Reach) -> None:
        """The services' own word, and ours: on leases, kernels, pings."""
        outcome = self._outcome
        end = time.monotonic() + _SILENT
        while (said := await self._complaints(scene)) and time.monotonic() < end:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(1.0)
        outcome.failures += said
        outcome.failures += await scene.wrong_leases() + await scene.wrong(scene.hosts)
        outcome.failures += unreached(await reaching.matrix(), await reaching.outside())
        self._growths.look(scene.cluster.services, time.monotonic(), {})

    async def _complaints(self, scene: Scene) -> list[str]:
        """What `flannelette doctor` and `diff` say, or the first of them that says something."""
        for words in (("doctor",), *(("diff", f"--on={host.name}") for host in scene.hosts)):
            if said := await self._say(*words):
                return [f"flannelette {' '.join(words)} says:\n{said}"]
        return []

    async def _say(self, *words: str) -> str:
        """What the command line says; nothing: nothing is wrong."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "flannelette.services.ctl.main", "--context=lab", *words),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={"FLANNELETTE_CONTEXTS": str(self._directory / CONTEXTS)},
        )
        said, _ = await process.communicate()
        return said.decode() if process.returncode else ""


def _keep(directory: Path, place: Path) -> None:
    for log in directory.glob("*/*.log"):
        (place / log.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, place / log.parent.name / log.name)


class Stuck(Exception):
    """A fault stays; the message says what is wrong."""
