"""How long it takes until N vxlan peers are in an empty kernel: neighbour, forwarding entry and route of each.

Ours is what the dataplane does with a complete table, a resync: dump the kernel, plan, apply. The peers are the
fastest that iproute2 can do, with prepared batch files, in two shapes: flannel's, where all routes have metric 0, and
ours, with a metric per subnet; and pyroute2's calls, one for each object, of as many peers as PYROUTE2_PEERS and
then multiplied. The limit is our own messages, encoded before, thrown at the kernel by bare `send`, which asks for no
answer but one a batch. Every contender starts in a fresh network namespace, and afterwards `ip` and `bridge` count
what is there. Not counted for anybody: what turns leases into objects or into text.
"""

import asyncio
import gc
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from pyroute2 import IPRoute

from bench.host import check, host_with_device
from bench.leases import MOST_LEASES
from bench.result import Bench, BenchFailed, Result
from flannelette.services.dataplane.kernel.reconciler import Reconciler, Scope
from flannelette.services.dataplane.netlink.kernel import KernelSocket, batches
from flannelette.services.dataplane.netlink.kinds import command
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Plan, Route, steps

PYROUTE2_PEERS: Final = 1_000
"""Most peers for pyroute2, whose time grows with the number of objects: 10,000 would take most of the time of this
bench."""
MOST_OF_FLANNEL: Final = 20_000
"""Most peers for flannel's way, whose time grows with the square: 50,000 take minutes."""
_FLANNEL: Final = "ip and bridge -batch, metric 0 as flannel"
_METRICS: Final = "ip and bridge -batch, a metric per subnet"
_PYROUTE2: Final = "pyroute2, a call for each object"
_LIMIT: Final = "bare send of our messages, encoded before"


@dataclass(frozen=True, slots=True)
class Time:
    """The time of one round."""

    elapsed: float
    cpu: float = 0.0


def _ours(peers: int) -> Time:
    with host_with_device() as host:
        desired = host.objects(peers)
        with host.namespace.inside():
            kernel = KernelSocket()
        with kernel, asyncio.Runner() as runner:
            reconciler = Reconciler(kernel)
            gc.collect()  # so that nobody pays for what was there before
            clock, cpu = time.perf_counter(), time.process_time()
            runner.run(_resync(reconciler, desired, host.scope))
            spent = Time(time.perf_counter() - clock, time.process_time() - cpu)
        for item, why in reconciler.failures.items():
            raise BenchFailed(f"ours: {command('replace', item, host.links.names())}: {why}")
        check("ours", host.namespace, peers)
        return spent


async def _resync(reconciler: Reconciler, desired: frozenset[KernelObject], scope: Scope) -> None:
    # The plan is dropped here: as the result of the task, asyncio.Runner would print it (repr) while it ends.
    await reconciler.reconcile(desired, scope)


def _iproute2(peers: int, shape: str, shaped: Callable[[KernelObject], KernelObject]) -> Time:
    with host_with_device() as host, tempfile.TemporaryDirectory() as directory:
        puts, names = _puts(frozenset(map(shaped, host.objects(peers)))), host.links.names()
        files = {tool: Path(directory, tool) for tool in ("bridge", "ip")}
        for tool, path in files.items():
            lines = (command("replace", each, names) for each in puts)
            path.write_text("".join(f"{line.removeprefix(tool)}\n" for line in lines if line.startswith(tool)))
        # Started from inside, not through `ip netns exec`, which would cost the peer another process.
        with host.namespace.inside():
            clock = time.perf_counter()
            for tool, path in files.items():
                run_batch(tool, path)
            spent = Time(time.perf_counter() - clock)
        check(shape, host.namespace, peers)
        return spent


def run_batch(tool: str, path: Path) -> None:
    """`ip -batch` or `bridge -batch`. Raises BenchFailed."""
    done = subprocess.run([tool, "-batch", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailed(f"{tool} -batch failed: {done.stderr.strip()}")


def _pyroute2(peers: int) -> Time:
    some = min(peers, PYROUTE2_PEERS)
    with host_with_device() as host:
        puts = _puts(host.objects(some))
        with host.namespace.inside():
            ip = IPRoute()
        try:
            clock = time.perf_counter()
            for item in puts:
                call(ip, item)
            spent = time.perf_counter() - clock
        finally:
            ip.close()
        check(_PYROUTE2, host.namespace, some)
    return Time(spent * peers / some)


def call(ip: Any, item: KernelObject, verb: str = "replace") -> None:
    """One object by a call of pyroute2."""
    match item:
        case Neighbour():
            state = "permanent" if verb == "replace" else 0
            ip.neigh(verb, dst=_text(item.dst), lladdr=item.mac.hex(":"), ifindex=item.ifindex, state=state)
        case FdbEntry():
            ip.fdb(
                "add" if verb == "replace" else verb,
                dst=_text(item.dst),
                lladdr=item.mac.hex(":"),
                ifindex=item.ifindex,
            )
        case Route():
            ip.route(
                verb,
                dst=f"{_text(item.dst)}/{item.length}",
                gateway=_text(item.gateway),
                oif=item.ifindex,
                priority=item.metric,
                proto=item.protocol,
                flags=["onlink"],
            )


def _text(packed: bytes) -> str:
    return str(IPv4Address(packed))


def _limit(peers: int) -> Time:
    with host_with_device() as host:
        data = [batch.data for batch in batches("replace", _puts(host.objects(peers)), 1)]
        with host.namespace.inside():
            raw = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
        with raw:
            clock, cpu = time.perf_counter(), time.process_time()
            for batch in data:
                raw.send(batch)  # the kernel has done it when this returns
                raw.recv(65536)
            spent = Time(time.perf_counter() - clock, time.process_time() - cpu)
        check(_LIMIT, host.namespace, peers)
        return spent


def _puts(objects: frozenset[KernelObject]) -> list[KernelObject]:
    return steps(Plan(objects, frozenset()))[0][1]


def _metric_zero(item: KernelObject) -> KernelObject:
    return item._replace(metric=0) if isinstance(item, Route) else item


def _run(parameters: Mapping[str, int]) -> Result:
    peers, rounds = parameters["peers"], parameters["rounds"]
    if peers > MOST_LEASES:
        raise BenchFailed(f"--peers is at most {MOST_LEASES}")
    contenders: dict[str, Callable[[], Time]] = {
        "ours": lambda: _ours(peers),
        _LIMIT: lambda: _limit(peers),
        _METRICS: lambda: _iproute2(peers, _METRICS, lambda item: item),
    }
    once: dict[str, Callable[[], Time]] = {_PYROUTE2: lambda: _pyroute2(peers)}
    if peers <= MOST_OF_FLANNEL:
        once[_FLANNEL] = lambda: _iproute2(peers, _FLANNEL, _metric_zero)
    times: dict[str, list[Time]] = {name: [] for name in (*contenders, *once)}
    for number in range(rounds):  # in turns, so that a busy moment of the machine hits all of them
        for name, contender in (contenders if number else contenders | once).items():
            times[name].append(contender())
    ours, limit = _best(times.pop("ours")), _best(times.pop(_LIMIT))
    return Result(
        name="cold_start_netlink",
        parameters=parameters,
        unit="seconds",
        ours=ours.elapsed,
        peers={name: _best(spent).elapsed for name, spent in times.items()},
        less_is_better=True,
        cpu_seconds=ours.cpu,
        figures={"times_the_limit": ours.elapsed / limit.elapsed, "times_the_limit_cpu": ours.cpu / limit.cpu},
        limits={_LIMIT: limit.elapsed},
    )


def _best(times: Sequence[Time]) -> Time:
    """What else ran on the machine only ever adds."""
    return min(times, key=lambda spent: spent.elapsed)


COLD_START_NETLINK: Final = Bench(
    name="cold_start_netlink",
    summary="N vxlan peers into an empty kernel, beside ip -batch, bridge -batch and pyroute2",
    parameters={"peers": 10_000, "rounds": 5},
    run=_run,
)
