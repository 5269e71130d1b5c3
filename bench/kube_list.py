"""What it takes to list and follow all nodes of a Kubernetes cluster: memory, time, and CPU for each event.

Ours is what the lease service does: pages of 50, of which each node becomes a lease and is forgotten. The peers keep
what they get, as informers do: the client's own models (V1Node), and the documents of json.loads, page by page. Each
contender is a process of its own, and none pays for its imports; the server is the same for all.
"""

import asyncio
import gc
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Final

from bench.kube_nodes import MOST_NODES, PAGE, node
from bench.result import Bench, BenchFailed, Result

_EVENTS: Final = 300
_PROCESS: Final = Path("/proc/self")

Fold = Callable[[bytes], object]
"""Takes one line of a watch."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one contender needed."""

    seconds: float
    """Duration of the listing."""
    mib: float
    """Largest memory, above what the process had before."""
    kept_mib: float
    """MiB that the process keeps in the end."""
    cpu: float
    event_p50_ms: float
    event_p99_ms: float
    leases: int


async def _ours(url: str) -> tuple[int, Fold]:
    from flannelette.services.core.network import parse_network
    from flannelette.services.lease.stores.kube.client import KubeClient
    from flannelette.services.lease.stores.kube.store import Mirror
    from flannelette.services.lease.stores.kube.values import Access, Timing, annotations, read_batch

    keys = annotations()
    network = parse_network('{"Network":"10.0.0.0/8","Backend":{"Type":"vxlan"}}', leases_subnets=False)
    mirror = Mirror(network, keys)
    client = KubeClient(Access(url), Timing(), keys, "bench")
    snapshot = mirror.replace(*await client.list_nodes())
    await client.close()

    def fold(line: bytes) -> object:
        batch = read_batch([line], keys, url)
        return mirror.fold(batch) if batch else None

    return len(snapshot.leases), fold


async def _models(url: str) -> tuple[int, Fold]:
    from kubernetes.aio.client import ApiClient, Configuration, CoreV1Api

    store: dict[str, Any] = {}
    async with ApiClient(Configuration(host=url)) as client:
        token = None
        while True:
            page = await CoreV1Api(client).list_node(limit=PAGE, _continue=token)
            store.update((item.metadata.name, item) for item in page.items)
            token = page.metadata._continue
            if not token:
                break

    def fold(line: bytes) -> object:
        text = json.dumps(json.loads(line)["object"])  # what the client's Watch does
        item = client.deserialize(text, "V1Node", "application/json")
        store[item.metadata.name] = item
        return item

    return len(store), fold


async def _documents(url: str) -> tuple[int, Fold]:
    import aiohttp

    store: dict[str, Any] = {}
    async with aiohttp.ClientSession() as session:
        token = ""
        while True:
            async with session.get(f"{url}/api/v1/nodes?limit={PAGE}&continue={token}") as response:
                page = json.loads(await response.read())
            store.update((item["metadata"]["name"], item) for item in page["items"])
            token = page["metadata"].get("continue", "")
            if not token:
                break

    def fold(line: bytes) -> object:
        item = json.loads(line)["object"]
        store[item["metadata"]["name"]] = item
        return item

    return len(store), fold


_CONTENDERS: Final = {"ours": _ours, "the client's models": _models, "json.loads, kept": _documents}


async def _contend(name: str, url: str, small: str) -> Round:
    """Lists from a server with a single node first, so that imports and first uses are over."""
    await _CONTENDERS[name](small)
    gc.collect()
    (_PROCESS / "clear_refs").write_text("5")  # the peak counts from here
    before, cpu, clock = _status("VmRSS"), _cpu(), time.perf_counter()
    leases, fold = await _CONTENDERS[name](url)
    seconds, spent = time.perf_counter() - clock, _cpu() - cpu
    peak = _status("VmHWM") - before
    gc.collect()
    kept = _status("VmRSS") - before
    times = []
    for number in range(_EVENTS):
        line = json.dumps({"type": "MODIFIED", "object": node(number % leases, 2 + number)}).encode()
        clock = time.perf_counter()
        fold(line)
        times.append(1000 * (time.perf_counter() - clock))
    return Round(seconds, peak, kept, spent, median(times), quantiles(times, n=100)[98], leases)


def _status(key: str) -> float:
    """Reads a figure of /proc/PID/status, in MiB."""
    return int((_PROCESS / "status").read_text().partition(f"{key}:")[2].split()[0]) / 1024


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


@contextmanager
def _server(nodes: int) -> Iterator[str]:
    command = [sys.executable, "-m", "bench.kube_nodes", str(nodes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None  # noqa: S101 - it is a pipe
            yield server.stdout.readline().strip()
        finally:
            server.kill()


def _run(parameters: Mapping[str, int]) -> Result:
    nodes, rounds = parameters["nodes"], parameters["rounds"]
    if nodes > MOST_NODES:
        raise BenchFailed(f"--nodes is at most {MOST_NODES}")
    found: dict[str, list[Round]] = {name: [] for name in _CONTENDERS}
    with _server(nodes) as url, _server(1) as small:
        for _ in range(rounds):  # in turns, so that a busy moment of the machine hits all of them
            for name, of_this in found.items():
                of_this.append(_round(name, url, small))
                if of_this[-1].leases != nodes:
                    raise BenchFailed(f"{name} listed {of_this[-1].leases} of {nodes} nodes")
    middle = {name: sorted(of_this, key=lambda one: one.mib)[(rounds - 1) // 2] for name, of_this in found.items()}
    ours, models = middle.pop("ours"), middle["the client's models"]
    return Result(
        name="kube_list",
        parameters=parameters,
        unit="MiB at most",
        ours=ours.mib,
        peers={name: one.mib for name, one in middle.items()},
        less_is_better=True,
        cpu_seconds=ours.cpu,
        figures={
            "kept_mib": ours.kept_mib,
            "seconds": ours.seconds,
            "models_seconds": models.seconds,
            "p50_ms": ours.event_p50_ms,
            "p99_ms": ours.event_p99_ms,
            "models_p50_ms": models.event_p50_ms,
            "lost": nodes - ours.leases,
        },
    )


def _round(name: str, url: str, small: str) -> Round:
    done = subprocess.run(
        [sys.executable, "-m", "bench.kube_list", name, url, small], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BenchFailed(f"{name}: {done.stderr.strip()[-500:]}")
    return Round(**json.loads(done.stdout))


KUBE_LIST: Final = Bench(
    name="kube_list",
    summary="N Nodes of Kubernetes listed and followed, beside the client's own models",
    parameters={"nodes": 5_000, "rounds": 3},
    run=_run,
)

if __name__ == "__main__":
    print(json.dumps(asdict(asyncio.run(_contend(*sys.argv[1:])))))
