"""How long a dataplane that was killed takes until it knows again that the kernel has N peers; nothing may change.

From before the exec of the new process until it says that it is ready, with everything it has to learn again: the
leases, the kernel's tables, its own subnet. `lost` is how many routes a netlink listener heard of meanwhile, which
were all there before. The peers are what a daemon does that adds everything anew on a start, as iproute2 does it.
"""

import asyncio
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.cold_start_netlink import run_batch
from bench.etcd import fill, running_etcd
from bench.host import PROTOCOL, check, empty_host
from bench.leases import subnets
from bench.listener import Heard, RouteListener
from bench.node import Node, node_on
from bench.process import cpu_seconds, resident_mib
from bench.result import Bench, Result

_SETTLE_SECONDS: Final = 1.0
_LISTENING_SECONDS: Final = 0.1
_AGAIN: Final = "ip and bridge -batch, everything added anew"


@dataclass(frozen=True, slots=True)
class Restart:
    """The figures of one restart."""

    seconds: float
    cpu: float
    heard: int
    memory: float


async def _restart(node: Node) -> Restart:
    heard: list[Heard] = []

    def note(one: Heard) -> bool:
        heard.append(one)
        return False

    with RouteListener(node.namespace, PROTOCOL) as listener:
        node.running["dataplane"].kill()
        node.running["dataplane"].wait()
        began = time.monotonic()
        node.start_dataplane()
        ready = await node.until_ready()
        dataplane = node.running["dataplane"]
        cpu = cpu_seconds(dataplane)
        await asyncio.sleep(_SETTLE_SECONDS)
        await listener.hear(note, _LISTENING_SECONDS)
    return Restart(ready - began, cpu, len(heard), resident_mib(dataplane, "VmHWM"))


def _again(node: Node, peers: int) -> float:
    """Measures how long iproute2 takes to write the same objects again."""
    with tempfile.TemporaryDirectory() as directory, node.namespace.inside():
        files = {tool: Path(directory, tool) for tool in ("bridge", "ip")}
        texts: dict[str, list[str]] = {"bridge": [], "ip": []}
        for number, subnet in enumerate(subnets(peers), 1):
            there, mac = subnet.cidr.network_address, getattr(subnet.data, "mac", "")
            texts["ip"].append(f"neigh replace {there} lladdr {mac} dev flannel.1 nud permanent\n")
            texts["bridge"].append(f"fdb replace {mac} dst {subnet.public_address} dev flannel.1 self permanent\n")
            metric = f"metric {number + 1} proto {PROTOCOL}"
            texts["ip"].append(f"route replace {subnet.cidr} via {there} dev flannel.1 onlink {metric}\n")
        for tool, lines in texts.items():
            files[tool].write_text("".join(lines))
        began = time.monotonic()
        for tool, file in files.items():
            run_batch(tool, file)
        return time.monotonic() - began


async def _measure(endpoint: str, peers: int, rounds: int) -> tuple[list[Restart], float]:
    with empty_host() as namespace, node_on(namespace, endpoint) as node:
        node.start()
        await node.until_ready()
        await asyncio.sleep(_SETTLE_SECONDS)
        found = [await _restart(node) for _ in range(rounds)]
        check("ours", namespace, peers)
        return found, _again(node, peers)


def _run(parameters: Mapping[str, int]) -> Result:
    peers, rounds = parameters["peers"], parameters["rounds"]
    with running_etcd() as endpoint:
        asyncio.run(fill(endpoint, peers))
        found, again = asyncio.run(_measure(endpoint, peers, rounds))
    best = min(found, key=lambda one: one.seconds)
    return Result(
        name="restart",
        parameters=parameters,
        unit="seconds until ready",
        ours=best.seconds,
        peers={_AGAIN: again},
        less_is_better=True,
        cpu_seconds=min(one.cpu for one in found),
        figures={"lost": sum(one.heard for one in found), "worst_seconds": max(one.seconds for one in found)},
        peak_rss_mib=max(one.memory for one in found),
    )


RESTART: Final = Bench(
    name="restart",
    summary="a dataplane that was killed until it is ready again; no route may change",
    parameters={"peers": 10_000, "rounds": 3},
    run=_run,
)
