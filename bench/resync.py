"""What it costs to compare the whole kernel with N leases and to find nothing to do; and to do nothing at all.

The dataplane audits every half a second instead of every minute. `ours` is the CPU of one audit, with everything that
belongs to it; the audits are counted by the dataplane's own metrics. `idle_percent` is the CPU of both processes
between audits, and `idle_with_audit_percent` that with one audit a minute. The peers only read the same tables.
"""

import asyncio
import http.client
import resource
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from pyroute2 import IPRoute

from bench.etcd import fill, running_etcd
from bench.host import check, empty_host
from bench.node import Node, node_on
from bench.process import children, cpu_seconds, resident_mib
from bench.result import Bench, BenchFailed, Result
from lab.netns import NetworkNamespace

_PORT: Final = 9100
_COUNT: Final = "flannelette_kernel_resync_seconds_count"
_USUAL_INTERVAL: Final = 60.0
_SETTLE_SECONDS: Final = 2.0
_TABLES: Final = (
    ("ip", "-json", "route", "show", "proto", "77"),
    ("ip", "-json", "neigh", "show", "dev", "flannel.1", "nud", "permanent"),
    ("bridge", "-json", "fdb", "show", "dev", "flannel.1"),
)


def _resyncs(node: Node) -> int:
    with node.namespace.inside():
        connection = http.client.HTTPConnection("127.0.0.1", _PORT, timeout=30)
        connection.connect()
    connection.request("GET", "/metrics")
    for line in connection.getresponse().read().decode().splitlines():
        name, _, value = line.rpartition(" ")
        if name == _COUNT:
            return int(float(value))
    raise BenchFailed(f"the dataplane has no metric {_COUNT}")


@dataclass(frozen=True, slots=True)
class Costs:
    """The costs of one comparison, of doing nothing, and of the peers."""

    audit: float
    """CPU seconds of one comparison."""
    idle: dict[str, float]
    """Figures of doing nothing, by name."""
    peers: dict[str, float]
    """CPU milliseconds of each peer, by its name."""


async def _audits(endpoint: str, peers: int, seconds: int) -> Costs:
    with empty_host() as namespace, node_on(namespace, endpoint) as node:
        node.start_lease()
        node.start_dataplane("--audit-interval=0.5", f"--healthz-port={_PORT}", "--healthz-ip=127.0.0.1")
        await node.until_ready()
        await asyncio.sleep(_SETTLE_SECONDS)
        dataplane = node.running["dataplane"]
        before, cpu = _resyncs(node), cpu_seconds(dataplane)
        await asyncio.sleep(seconds)
        spent, audits = cpu_seconds(dataplane) - cpu, _resyncs(node) - before
        check("ours", namespace, peers)
    if not audits:
        raise BenchFailed("no audit was counted")
    with empty_host() as namespace, node_on(namespace, endpoint) as node:
        node.start()
        await node.until_ready()
        await asyncio.sleep(_SETTLE_SECONDS)
        begin, since = node.cpu(), time.monotonic()
        await asyncio.sleep(seconds)
        end, passed = node.cpu(), time.monotonic() - since
        idle = {name: 100 * (end[name] - begin[name]) / passed for name in end}
        memory = {name: resident_mib(process) for name, process in node.running.items()}
        figures = {
            **{f"{name}_idle_percent": share for name, share in idle.items()},
            "children": sum(len(children(process)) for process in node.running.values()),
            **{f"{name}_mib": mib for name, mib in memory.items()},
        }
        _read_tables(namespace)  # so that what the peers cost is compared with a warm kernel
        peers_cost = await asyncio.to_thread(_peers, namespace)  # pyroute2 wants no event loop
    return Costs(spent / audits, figures, peers_cost)


def _peers(namespace: NetworkNamespace) -> dict[str, float]:
    """Measures the peers, in milliseconds of CPU."""
    with namespace.inside():
        ip = IPRoute()
    try:
        (device,) = ip.link_lookup(ifname="flannel.1")
        return {
            "ip and bridge, which only list": _cost(resource.RUSAGE_CHILDREN, lambda: _read_tables(namespace)),
            "pyroute2, which only lists": _cost(resource.RUSAGE_SELF, lambda: _dump(ip, device)),
        }
    finally:
        ip.close()


def _read_tables(namespace: NetworkNamespace) -> None:
    with namespace.inside():
        for command in _TABLES:
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def _dump(ip: IPRoute, device: int) -> None:
    for answer in (ip.get_routes(proto=77), ip.get_neighbours(ifindex=device), ip.fdb("dump", ifindex=device)):
        list(answer)


def _cost(who: int, work: Callable[[], None]) -> float:
    before = resource.getrusage(who)
    work()
    after = resource.getrusage(who)
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _run(parameters: Mapping[str, int]) -> Result:
    peers, seconds = parameters["peers"], parameters["seconds"]
    with running_etcd() as endpoint:
        asyncio.run(fill(endpoint, peers))
        costs = asyncio.run(_audits(endpoint, peers, seconds))
    with_audit = costs.idle["dataplane_idle_percent"] + 100 * costs.audit / _USUAL_INTERVAL
    return Result(
        name="resync",
        parameters=parameters,
        unit="milliseconds of CPU",
        ours=1000 * costs.audit,
        peers=costs.peers,
        less_is_better=True,
        cpu_seconds=costs.audit,
        figures={**costs.idle, "dataplane_idle_with_audit_percent": with_audit},
        peak_rss_mib=max(costs.idle["lease_mib"], costs.idle["dataplane_mib"]),
    )


RESYNC: Final = Bench(
    name="resync",
    summary="CPU of a comparison of everything that finds nothing to do, and of doing nothing",
    parameters={"peers": 10_000, "seconds": 10},
    run=_run,
)
