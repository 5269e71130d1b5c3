"""One node beside a real flanneld: the same etcd, the same changes, in turns.

The contenders are flanneld, `flannelette flanneld` (one process) and the three services, each with masquerade, on a
host of its own, with N leases in an etcd of its own whose nodes do not answer: the probes of their addresses are in
the figures. Everything is at real-time priority where that is allowed, so that what else runs on the machine waits.
Figures are medians of all rounds, of latencies the percentiles of all samples.
"""

import asyncio
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.bare_etcd import BareEtcd, bare_etcd
from bench.changes import Clock, News, destination, first_change, row
from bench.etcd import fill, started_etcd
from bench.host import PROTOCOL, check, empty_host, routes
from bench.listener import Heard, RouteListener
from bench.process import running
from bench.result import Bench, BenchFailed, NotHere, Result, percentiles
from lab.netns import NetworkNamespace

_PATIENCE: Final = 120.0
_NEVER: Final = 20.0
"""Seconds after which a stale route counts as kept."""
_SETTLE_SECONDS: Final = 3.0
_APART: Final = 0.25
"""Seconds between two puts that find nothing of their code in the processor's caches."""
_WARM: Final = 0.01
_ETCD: Final = ("192.0.2.1", "192.0.2.2")
"""The two ends of the link between etcd and the host."""
_BOOT: Final = 3
"""The number of `proto boot`, which is what flannel's routes say."""
_MAPPING: Final = re.compile(r"[0-9a-f]+-[0-9a-f]+ \S+ \S+ \S+ (\d+) +(.*)")


@dataclass(frozen=True, slots=True)
class Contender:
    """One of those that are compared."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    """Programs with their arguments; {home} stands for a directory of its own, {etcd} for the URL of etcd."""
    protocol: int
    """Protocol number of its routes."""


def _contenders() -> tuple[Contender, ...]:
    """Returns all contenders. Raises NotHere without a flanneld."""
    program = shutil.which("flanneld")
    if program is None:
        raise NotHere("flanneld is not installed: `make tools`, where Go is")
    etcd = "--etcd-endpoints={etcd}"
    node = ("--iface=eth0", "--subnet-file={home}/subnet.env")
    ours = ("--node=bench", "--socket-dir={home}")
    kept = "--state-dir={home}/state"
    three = (
        (*_program("lease"), *ours, "--store=etcd", etcd),
        (*_program("dataplane"), *ours, *node, kept, "--ip-masq"),
        (*_program("masq"), *ours, kept, "--ip-masq"),
    )
    return (
        Contender("flanneld", ((program, etcd, *node, "--ip-masq"),), _BOOT),
        Contender(
            "one",
            ((*_program("ctl")[:2], "flannelette.services.ctl", "flanneld", *ours, etcd, *node, kept, "--ip-masq"),),
            PROTOCOL,
        ),
        Contender("three", three, PROTOCOL),
    )


def _program(service: str) -> tuple[str, ...]:
    return sys.executable, "-m", f"flannelette.services.{service}.main"


@dataclass
class _Trial:
    """A contender on a host, with an etcd."""

    contender: Contender
    namespace: NetworkNamespace
    endpoint: str
    home: Path
    listener: RouteListener
    etcd: BareEtcd
    processes: ExitStack = field(default_factory=ExitStack)
    running: "list[subprocess.Popen[bytes]]" = field(default_factory=list)

    async def start(self) -> float:
        """Starts all programs. Returns the seconds until the last said that it is ready, as to systemd."""
        loop = asyncio.get_running_loop()
        notify = self.home / "notify"
        notify.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
            heard.bind(str(notify))
            heard.setblocking(False)
            began = time.monotonic()
            for number, command in enumerate(self.contender.commands):
                words = [word.format(home=self.home, etcd=self.endpoint) for word in command]
                around = self.namespace.command("env", f"NOTIFY_SOCKET={notify}", *words)
                process = running(*around, log=self.home / f"log{number}")
                self.running.append(self.processes.enter_context(process))
            told = 0
            with suppress(TimeoutError):
                async with asyncio.timeout(_PATIENCE):
                    while told < len(self.contender.commands):
                        told += b"READY=1" in await loop.sock_recv(heard, 4096)
            if told < len(self.contender.commands):
                raise BenchFailed(f"{self.contender.name} did not get ready: {self.log()}")
            return time.monotonic() - began

    def kill(self) -> None:
        """Kills all programs and what they have started, as a crash does."""
        for process in self.tree():
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.processes.close()
        self.running.clear()

    def tree(self) -> list[int]:
        """Returns the ids of its processes, those that they have started too."""
        found = [process.pid for process in self.running]
        for pid in found:  # grows meanwhile
            with suppress(OSError):
                for task in Path(f"/proc/{pid}/task").iterdir():
                    found += map(int, (task / "children").read_text().split())
        return found

    def cpu(self) -> float:
        """CPU seconds of all that runs, and of what they have started and that has ended."""
        ticks, nanoseconds = 0, 0
        for pid in self.tree():
            with suppress(OSError):
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                ticks += int(fields[13]) + int(fields[14])
                for task in Path(f"/proc/{pid}/task").iterdir():
                    nanoseconds += int((task / "schedstat").read_text().split()[0])
        return ticks / os.sysconf("SC_CLK_TCK") + nanoseconds / 1e9

    def memory(self) -> float:
        """MiB that a host has in memory on behalf of it if nothing else runs there: what the processes have written,
        and each mapped file once. (PSS would leave out what this bench shares with our services.)
        """
        own, files = 0, dict[str, int]()
        for pid in self.tree():
            mapped = defaultdict[str, int](int)
            with suppress(OSError):
                file, resident, anonymous, shared = "", 0, 0, 0
                for line in (*Path(f"/proc/{pid}/smaps").read_text().splitlines(), "0-0 - - - 0 "):
                    if start := _MAPPING.match(line):
                        own += anonymous if file else shared
                        mapped[file] += (resident - anonymous) if file else 0
                        file, resident, anonymous, shared = (start[2] if start[1] != "0" else ""), 0, 0, 0
                    elif line.startswith("Rss:"):
                        resident = int(line.split()[1])
                    elif line.startswith("Anonymous:"):
                        anonymous = int(line.split()[1])
                    elif line.startswith("Pss:"):
                        shared = int(line.split()[1])
            files = {each: max(files.get(each, 0), mapped.get(each, 0)) for each in files.keys() | mapped.keys()}
        return (own + sum(files.values())) / 1024

    async def hear(self, clock: Clock) -> None:
        """Waits until all changes of a clock were heard of, or the patience is at its end."""

        def enough(heard: News) -> bool:
            clock.heard(heard)
            return not clock.outstanding

        await self.listener.hear(enough, _NEVER)

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-600:] for path in sorted(self.home.glob("log*")))


@contextmanager
def _near_etcd(namespace: NetworkNamespace) -> Iterator[str]:
    """An etcd outside of a host's namespace, at a link of its own to it; yields its URL."""
    here, there = _ETCD
    namespace.ip("link", "add", "etcd0", "type", "veth", "peer", "etcd1", "netns", str(os.getpid()))
    for command in (f"address add {here}/30 dev etcd1", "link set etcd1 up"):
        subprocess.run(["ip", *command.split()], check=True)
    namespace.ip("address", "add", f"{there}/30", "dev", "etcd0")
    namespace.ip("link", "set", "etcd0", "up")
    try:
        with started_etcd(here) as (endpoint, _):
            yield endpoint
    finally:
        namespace.ip("link", "delete", "etcd0")


@asynccontextmanager
async def _trial(contender: Contender, peers: int) -> AsyncIterator[_Trial]:
    with empty_host() as namespace, _near_etcd(namespace) as endpoint, tempfile.TemporaryDirectory() as directory:
        await fill(endpoint, peers)
        (Path(directory) / "state").mkdir(mode=0o700)
        with RouteListener(namespace, contender.protocol) as listener:
            async with bare_etcd(endpoint) as etcd:
                trial = _Trial(contender, namespace, endpoint, Path(directory), listener, etcd)
                try:
                    yield trial
                finally:
                    trial.kill()


async def _try(contender: Contender, parameters: Mapping[str, int]) -> tuple[dict[str, float], Clock, Clock]:
    """Returns the figures of a round, and the times of its puts: apart, and warm."""
    peers, samples, found = parameters["peers"], parameters["samples"], dict[str, float]()
    async with _trial(contender, peers) as trial:
        began = time.monotonic()
        counting = asyncio.create_task(trial.listener.count(peers, _PATIENCE))
        found["ready_seconds"] = await trial.start()
        found["cold_start_seconds"] = await counting - began
        await asyncio.sleep(_SETTLE_SECONDS)
        check(contender.name, trial.namespace, peers, str(contender.protocol))
        found["memory_mib"] = trial.memory()
        before = trial.cpu()
        await asyncio.sleep(parameters["seconds"])
        found["idle_cpu_seconds_a_minute"] = (trial.cpu() - before) * 60 / parameters["seconds"]

        first = first_change(peers)
        apart, warm = Clock(), Clock()
        for number in range(first, first + samples):
            await _put(trial, apart, number, _APART)
        before = trial.cpu()
        for number in range(first + samples, first + 2 * samples):
            await _put(trial, warm, number, _WARM)
        found["put_cpu_ms"] = 1000 * (trial.cpu() - before) / samples
        found["puts_lost"] = apart.outstanding + warm.outstanding

        first += 2 * samples
        clock, rows = Clock(), [row(each) for each in range(first, first + parameters["changes"])]
        began = time.monotonic()
        for each in range(first, first + parameters["changes"]):
            clock.sent(each, gone=False)
        listening = asyncio.create_task(trial.hear(clock))
        await asyncio.gather(*(trial.etcd.put(*each) for each in rows))
        await listening
        found["burst_seconds"] = time.monotonic() - began
        expected = {
            destination(each) for each in (*range(1, peers + 1), *range(first_change(peers), first + len(rows)))
        }
        found["burst_lost"] = len(expected ^ routes(trial.namespace, str(contender.protocol)))
        found |= await _restart(trial, first + len(rows))
    return found, apart, warm


async def _put(trial: _Trial, clock: Clock, number: int, pause: float) -> None:
    key, value = row(number)
    clock.sent(number, gone=False)
    done = trial.etcd.put(key, value)
    await trial.hear(clock)
    await done
    await asyncio.sleep(pause)


async def _restart(trial: _Trial, new: int) -> dict[str, float]:
    """Kills everything, changes two leases meanwhile, starts again: seconds until the route to the new one is there
    and that to the one that is gone is not; the latter is left out where it stays.
    """
    trial.kill()
    await trial.etcd.put(*row(new))
    await trial.etcd.delete(row(1)[0])
    times, changed = dict[tuple[bytes, bool], float](), [0]
    wanted = {(destination(new), False): "restart_new_seconds", (destination(1), True): "restart_stale_seconds"}

    def enough(heard: Heard) -> bool:
        place = heard.destination, heard.gone
        times.setdefault(place, heard.at)
        changed[0] += place not in wanted
        return wanted.keys() <= times.keys()

    began = time.monotonic()
    listening = asyncio.create_task(trial.listener.hear(enough, _NEVER))
    await trial.start()
    await listening
    return {name: times[place] - began for place, name in wanted.items() if place in times} | {
        "restart_changed": float(changed[0])
    }


def _run(parameters: Mapping[str, int]) -> Result:
    contenders = _contenders()
    with suppress(OSError):  # not allowed
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    figures, puts = dict[str, dict[str, list[float]]](), dict[str, tuple[list[float], list[float]]]()
    for _ in range(parameters["rounds"]):
        for contender in contenders:
            found, apart, warm = asyncio.run(_try(contender, parameters))
            kept = figures.setdefault(contender.name, {})
            for name, value in found.items():
                kept.setdefault(name, []).append(value)
            puts.setdefault(contender.name, ([], []))
            puts[contender.name][0].extend(apart.milliseconds)
            puts[contender.name][1].extend(warm.milliseconds)
    told = dict[str, float]()
    for who, series in figures.items():
        for name, values in series.items():
            told[f"{who}_{name}"] = statistics.median(values)
            told[f"{who}_{name}_least"], told[f"{who}_{name}_most"] = min(values), max(values)
        for kind, milliseconds in zip(("put", "warm_put"), puts[who], strict=True):
            told |= {f"{who}_{kind}_{name}": value for name, value in percentiles(milliseconds).items()}
    return Result(
        name="flanneld",
        parameters=parameters,
        unit="milliseconds, the median of warm puts, of one process",
        ours=told["one_warm_put_p50_ms"],
        peers={"flanneld": told["flanneld_warm_put_p50_ms"]},
        less_is_better=True,
        cpu_seconds=told["one_put_cpu_ms"] / 1000,
        figures=told,
        peak_rss_mib=told["one_memory_mib_most"],
    )


FLANNELD: Final = Bench(
    name="flanneld",
    summary="a node of N leases, as one process and as three, beside a real flanneld",
    parameters={"peers": 1_000, "rounds": 3, "samples": 100, "changes": 1_000, "seconds": 30},
    run=_run,
)
