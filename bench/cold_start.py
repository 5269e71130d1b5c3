"""How long it takes until N vxlan peers are in an empty kernel: neighbour, forwarding entry and route of each.

Ours is what the dataplane does with a complete table, a resync: dump the kernel, plan, apply. The peers are the
fastest that iproute2 can do, with prepared batch files, in two shapes: flannel's, where all routes have metric 0, and
ours, with a metric per subnet. Every contender starts in a fresh network namespace, and afterwards `ip` and `bridge`
count what is there. Not counted for anybody: what turns leases into objects or into text.
"""

import asyncio
import gc
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from bench.result import Bench, BenchFailed, Result
from lab.netns import NetworkNamespace
from services.core.family import IPV4
from services.core.lease import Subnet, VxlanData
from services.core.plan import Plan
from services.dataplane.backends.backend import Device, Links
from services.dataplane.backends.vxlan import Vxlan, stable_mac
from services.dataplane.netlink.notation import command
from services.dataplane.netlink.objects import KernelObject, Route, steps
from services.dataplane.netlink.socket import KernelSocket
from services.dataplane.ownership import Domain
from services.dataplane.reconciler import Reconciler, Scope
from services.dataplane.underlay import Underlay

MOST_PEERS: Final = 65_000
"""So many /24 subnets has the network, and so many addresses the underlay."""
_NETWORK: Final = IPv4Network("10.0.0.0/8")
_OWN_SUBNET: Final = IPv4Network("10.0.0.0/24")
_PROTOCOL: Final = 77
_SETTLING_SECONDS: Final = 0.7
"""The kernel takes a deleted namespace apart in the background, holding the lock (rtnl) that the next one needs."""
_UNDERLAY: Final = IPv4Network("192.168.0.0/16")


@dataclass(frozen=True, slots=True)
class Host:
    """A fresh network namespace with an underlay and an empty VXLAN device."""

    namespace: NetworkNamespace
    links: Links

    @property
    def scope(self) -> Scope:
        """Where the dataplane looks, and what is ours there."""
        devices = frozenset(device.index for device in self.links.devices.values())
        return Scope((IPV4,), Domain([_NETWORK], [_OWN_SUBNET], devices, _PROTOCOL))

    def objects(self, peers: int) -> frozenset[KernelObject]:
        """What our backend wants for the peers' leases."""
        backend = Vxlan()
        return frozenset(each for subnet in _subnets(peers) for each in backend.objects(IPV4, subnet, self.links))


def _subnets(peers: int) -> Iterator[Subnet]:
    for number in range(1, peers + 1):
        cidr = IPv4Network((int(_NETWORK.network_address) + (number << 8), 24))
        yield Subnet(cidr, _UNDERLAY[number + 1], VxlanData(1, stable_mac(f"node-{number}", "flannel.1")))


@contextmanager
def _fresh_host() -> Iterator[Host]:
    namespace = NetworkNamespace("bench")
    namespace.create()
    try:
        for line in (
            "link add eth0 type veth peer far",
            "link set far up",
            "link set eth0 up",
            f"address add {_UNDERLAY[1]}/16 dev eth0",
            f"link add flannel.1 type vxlan id 1 dev eth0 local {_UNDERLAY[1]} dstport 8472 nolearning",
            f"address add {_OWN_SUBNET[0]}/32 dev flannel.1",
            "link set flannel.1 up",
        ):
            namespace.ip(*line.split())
        with namespace.inside():
            underlay = Underlay(socket.if_nametoindex("eth0"), "eth0", 1500, (_UNDERLAY[1],), (_UNDERLAY[1],), "")
            device = Device("flannel.1", socket.if_nametoindex("flannel.1"), "", 1450, "")
        yield Host(namespace, Links(underlay, {IPV4: device}, _PROTOCOL))
    finally:
        namespace.delete()
        time.sleep(_SETTLING_SECONDS)


@dataclass(frozen=True, slots=True)
class Time:
    """Of one round."""

    elapsed: float
    cpu: float


def _ours(peers: int) -> Time:
    with _fresh_host() as host:
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
        _check("ours", host.namespace, peers)
        return spent


async def _resync(reconciler: Reconciler, desired: frozenset[KernelObject], scope: Scope) -> None:
    # The plan is dropped here: as the result of the task, asyncio.Runner would print it (repr) while it ends.
    await reconciler.resync(desired, scope)


def _iproute2(peers: int, shape: str, shaped: Callable[[KernelObject], KernelObject]) -> Time:
    with _fresh_host() as host, tempfile.TemporaryDirectory() as directory:
        wanted = frozenset(map(shaped, host.objects(peers)))
        ((_, puts), _) = steps(Plan(wanted, frozenset()))
        names = host.links.names()
        batches = {tool: Path(directory, tool) for tool in ("bridge", "ip")}
        for tool, path in batches.items():
            lines = (command("replace", each, names) for each in puts)
            path.write_text("".join(f"{line.removeprefix(tool)}\n" for line in lines if line.startswith(tool)))
        # Started from inside, not through `ip netns exec`, which would cost the peer another process.
        with host.namespace.inside():
            clock = time.perf_counter()
            for tool, path in batches.items():
                _batch(tool, path)
            spent = Time(time.perf_counter() - clock, 0)
        _check(shape, host.namespace, peers)
        return spent


def _batch(tool: str, path: Path) -> None:
    done = subprocess.run([tool, "-batch", path], capture_output=True, text=True, check=False)
    if done.returncode:
        raise BenchFailed(f"{tool} -batch failed: {done.stderr.strip()}")


def _check(who: str, namespace: NetworkNamespace, peers: int) -> None:
    """Counts, with tools that are not ours, that everything is there."""
    found = {
        "routes": namespace.ip("-json", "route", "show", "proto", str(_PROTOCOL)),
        "neighbours": namespace.ip("-json", "neigh", "show", "dev", "flannel.1", "nud", "permanent"),
        "forwarding entries": namespace.run("bridge", "-json", "fdb", "show", "dev", "flannel.1"),
    }
    for what, text in found.items():
        if len(json.loads(text)) != peers:
            raise BenchFailed(f"{who} made {len(json.loads(text))} of {peers} {what}")


def _metric_zero(item: KernelObject) -> KernelObject:
    return item._replace(metric=0) if isinstance(item, Route) else item


def _run(parameters: Mapping[str, int]) -> Result:
    peers, rounds = parameters["peers"], parameters["rounds"]
    if peers > MOST_PEERS:
        raise BenchFailed(f"--peers is at most {MOST_PEERS}")
    flannels, with_metric = "ip and bridge -batch, metric 0 as flannel", "ip and bridge -batch, a metric per subnet"
    contenders: dict[str, Callable[[], Time]] = {
        "ours": lambda: _ours(peers),
        flannels: lambda: _iproute2(peers, flannels, _metric_zero),
        with_metric: lambda: _iproute2(peers, with_metric, lambda item: item),
    }
    times: dict[str, list[Time]] = {name: [] for name in contenders}
    for _ in range(rounds):  # in turns, so that a busy moment of the machine hits all of them
        for name, contender in contenders.items():
            times[name].append(contender())
    ours = _middle(times.pop("ours"))
    return Result(
        name="cold_start",
        parameters=parameters,
        unit="seconds",
        ours=ours.elapsed,
        peers={name: _middle(spent).elapsed for name, spent in times.items()},
        less_is_better=True,
        cpu_seconds=ours.cpu,
    )


def _middle(times: Sequence[Time]) -> Time:
    return sorted(times, key=lambda spent: spent.elapsed)[(len(times) - 1) // 2]


COLD_START: Final = Bench(
    name="cold_start",
    summary="N vxlan peers into an empty kernel, beside ip -batch and bridge -batch",
    parameters={"peers": 10_000, "rounds": 5},
    run=_run,
)
