"""How long it takes until N leases that are in etcd are N peers in an empty kernel, from nothing at all.

From before the exec of both processes, lease service and dataplane, until a netlink listener has heard of the last
route; all of it with a round trip of DELAY ms to etcd as well. The peer is a pipeline of what exists on any machine:
etcdctl lists the leases, a script (`bench.cold_start_pipeline`) turns them into text for `bridge -batch` and `ip
-batch`, in flannel's shape and in ours; it follows nothing afterwards. Its device was made before.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cold_start_netlink import MOST_OF_FLANNEL
from bench.delay import delayed
from bench.etcd import fill, running_etcd
from bench.host import PROTOCOL, add_device, check, empty_host
from bench.leases import MOST_LEASES
from bench.listener import RouteListener
from bench.node import node_on
from bench.process import resident_mib, running, unless_failed
from bench.result import Bench, BenchFailed, Result

_PATIENCE: Final = 120.0
_BOOT: Final = 3
"""The number of `proto boot`, which is what flannel's routes say."""
_FLANNEL: Final = "etcdctl, a script, ip and bridge -batch, metric 0 as flannel"
_METRICS: Final = "etcdctl, a script, ip and bridge -batch, a metric per subnet"


@dataclass(frozen=True, slots=True)
class Round:
    """A round with our services, in seconds and MiB."""

    last_route: float
    ready: float
    cpu: Mapping[str, float]
    """CPU of each process, until the last route."""
    memory: Mapping[str, float]
    """The most that each ever had."""

    @property
    def total_cpu(self) -> float:
        return sum(self.cpu.values())


async def _ours(endpoint: str, peers: int, delay: int) -> Round:
    with delayed(endpoint, delay) as farther, empty_host() as namespace:
        with RouteListener(namespace, PROTOCOL) as listener, node_on(namespace, farther) as node:
            node.start()
            last = await unless_failed(listener.count(peers, _PATIENCE), node.logs)
            cpu = node.cpu()
            ready = await node.until_ready()
            memory = {name: resident_mib(process, "VmHWM") for name, process in node.running.items()}
        check("ours", namespace, peers)
        return Round(last - node.started_at, ready - node.started_at, cpu, memory)


async def _pipeline(endpoint: str, peers: int, shape: str) -> float:
    protocol = _BOOT if shape == "flannel" else PROTOCOL
    with empty_host() as namespace:
        add_device(namespace)
        with RouteListener(namespace, protocol) as listener:
            command = (sys.executable, "-m", "bench.cold_start_pipeline", endpoint, namespace.name, shape)
            began = time.monotonic()
            with (
                tempfile.TemporaryDirectory() as directory,
                running(*command, log=(log := Path(directory, "log"))) as peer,
            ):
                last = await unless_failed(listener.count(peers, _PATIENCE), {log: peer})
        return last - began


def _run(parameters: Mapping[str, int]) -> Result:
    peers, rounds, delay = parameters["peers"], parameters["rounds"], parameters["delay"]
    if peers > MOST_LEASES - 100:
        raise BenchFailed(f"--peers is at most {MOST_LEASES - 100}")
    with running_etcd() as endpoint:
        asyncio.run(fill(endpoint, peers))
        near, far, metrics = [], [], []
        flannel = {_FLANNEL: asyncio.run(_pipeline(endpoint, peers, "flannel"))} if peers <= MOST_OF_FLANNEL else {}
        for _ in range(rounds):
            near.append(asyncio.run(_ours(endpoint, peers, 0)))
            far.append(asyncio.run(_ours(endpoint, peers, delay)))
            metrics.append(asyncio.run(_pipeline(endpoint, peers, "metrics")))
    ours = _best(near)
    return Result(
        name="cold_start",
        parameters=parameters,
        unit="seconds",
        ours=ours.last_route,
        peers={_METRICS: min(metrics), **flannel},
        less_is_better=True,
        cpu_seconds=ours.total_cpu,
        figures={
            "with_delay_seconds": _best(far).last_route,
            "ready_seconds": min(one.ready for one in near),
            **{f"{name}_cpu_seconds": min(one.cpu[name] for one in near) for name in ours.cpu},
            **{f"{name}_mib": max(one.memory[name] for one in near) for name in ours.memory},
        },
        peak_rss_mib=max(max(one.memory.values()) for one in near),
    )


def _best(rounds: Sequence[Round]) -> Round:
    """What else ran on the machine only ever adds."""
    return min(rounds, key=lambda one: one.last_route)


COLD_START: Final = Bench(
    name="cold_start",
    summary="N leases from a real etcd into an empty kernel, from exec to the last route",
    parameters={"peers": 10_000, "rounds": 3, "delay": 2},
    run=_run,
)
