"""A process with many simulated nodes: `python -m lab.simulate.crowd ETCD`, driven by JSON lines on its input.

A line is `{"id": 1, "call": "start", ...}`: the name of a method of Crowd and its arguments. The answer, on a line of
the output, is `{"id": 1, "result": ...}` or `{"id": 1, "error": "..."}`. Calls run at the same time.
"""

import asyncio
import gc
import json
import logging
import random
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ipaddress import IPv4Address
from typing import Any, Final

import structlog

from flannelette.services.core.leases.lease import Lease
from lab.simulate.kernel import SimulatedKernel, entries_for
from lab.simulate.node import Marker, Node
from lab.simulate.sharing import Shared
from lab.simulate.store import etcd_client, stored_leases

_AT_ONCE: Final = 20
"""Nodes that are stopped at the same time."""
_MOST_NAMED: Final = 5


class Crowd:
    """The nodes of this process, by name."""

    def __init__(self, etcd: str) -> None:
        self.nodes: dict[str, Node] = {}
        self._etcd = etcd
        self._shared = Shared()

    async def start(self, nodes: Sequence[tuple[str, str, str, bool]], over: float = 0.0) -> None:
        """Starts nodes (name, public address, lease service, whether it has a kernel), spread over some seconds."""

        async def one(name: str, address: str, service: str, has_kernel: bool) -> None:
            await asyncio.sleep(random.uniform(0, over))  # noqa: S311 - jitter
            kernel = SimulatedKernel() if has_kernel else None
            self.nodes[name] = Node(name, IPv4Address(address), service, self._shared, kernel, [])

        await asyncio.gather(*(one(*node) for node in nodes))

    async def restart(self, nodes: Sequence[tuple[str, str]], over: float = 0.0) -> None:
        """Ends nodes and starts them again; with another public address after a reboot, with an empty kernel."""

        async def one(name: str, address: str) -> None:
            await asyncio.sleep(random.uniform(0, over))  # noqa: S311 - jitter
            old = self.nodes[name]
            await old.stop()
            kernel, former = old.kernel, old.renewer.previous_subnets
            if IPv4Address(address) != old.address and kernel is not None:
                kernel = SimulatedKernel()
            self.nodes[name] = Node(name, IPv4Address(address), old.service, self._shared, kernel, former)

        await asyncio.gather(*(one(*node) for node in nodes))

    async def leave(self, names: Sequence[str]) -> None:
        """Nodes give their leases back and are gone. Who has none yet gets it first: it may be under way."""

        async def one(name: str) -> None:
            while not self.nodes[name].leased.is_set():
                await self.nodes[name].leased.wait()
            await self.nodes.pop(name).stop(leaves=True)

        await asyncio.gather(*map(one, names))

    async def leased(self) -> list[float]:
        """Waits until every node holds a lease; when each did for the first time since its start."""
        while waiting := [node for node in self.nodes.values() if not node.leased.is_set()]:
            await waiting[0].leased.wait()
        return [node.leased_at or 0.0 for node in self.nodes.values()]

    async def expect(self, name: str, address: str) -> None:
        """Starts to note when each node has this lease with this public address."""
        for node in self.nodes.values():
            node.expect(Marker(name, IPv4Address(address)))

    async def marked(self, patience: float) -> dict[str, Any]:
        """When each node had what was expected, and who did not in time. Who was stopped meanwhile is in neither."""
        nodes = list(self.nodes.values())
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                for node in nodes:
                    await node.marked.wait()
        missing = [node.name for node in nodes if not node.marked.is_set()]
        return {"times": [node.marked_at for node in nodes if node.marked_at], "missing": missing}

    async def figures(self) -> dict[str, Any]:
        """What was received so far, and what is wrong."""
        shared = self._shared
        failures = [failure for node in self.nodes.values() for failure in node.failures]
        waiting = [f"{n.name}: {n.renewer.reason or n.feed.error}" for n in self.nodes.values() if n.renewer.reason]
        return {
            "nodes": len(self.nodes),
            "messages": shared.messages,
            "bytes": shared.bytes,
            "parsed": shared.parsed,
            "reports": shared.calls["ReportProgress"],
            "failures": failures[:_MOST_NAMED],
            "waiting": waiting[:_MOST_NAMED],
        }

    async def compare(self) -> dict[str, Any]:
        """Every table and every kernel beside the leases that etcd has; the nodes that differ."""
        async with etcd_client(self._etcd) as client:
            stored = await stored_leases(client)
        nodes = [(node.name, node.feed.table.leases, node.kernel) for node in self.nodes.values()]
        tables, kernels = differing(nodes, stored)
        gc.collect()  # nodes that were stopped are circles of objects
        checked = sum(node.kernel is not None for node in self.nodes.values())
        return {"tables": tables, "kernels": kernels, "checked": checked}

    async def stop(self) -> None:
        """Ends all nodes of the process."""
        limit = asyncio.Semaphore(_AT_ONCE)

        async def one(node: Node) -> None:
            async with limit:
                await node.stop()

        await asyncio.gather(*map(one, self.nodes.values()))


def differing(
    nodes: Iterable[tuple[str, Mapping[str, Lease], SimulatedKernel | None]], stored: Mapping[str, Lease]
) -> tuple[list[str], list[str]]:
    """The names of the nodes whose table, and of those whose kernel, is not what these leases say."""
    tables, kernels, as_stored = list[str](), list[str](), dict[int, bool]()

    def is_stored(name: str, lease: Lease) -> bool:
        found = as_stored.get(id(lease))  # the nodes share their leases, which live while we look
        if found is None:
            there = stored.get(lease.name)
            found = as_stored[id(lease)] = there is not None and _content(there) == _content(lease)
        return found and name == lease.name

    entries = entries_for("", stored.values())
    own = {lease.node: entries_for("", [lease]) for lease in stored.values()}
    for name, leases, kernel in nodes:
        if len(leases) != len(stored) or not all(is_stored(*pair) for pair in leases.items()):
            tables.append(name)
        if kernel is not None and kernel.entries() != entries - own.get(name, frozenset()):
            kernels.append(name)
    return tables, kernels


def _content(lease: Lease) -> tuple[object, ...]:
    return lease.name, lease.node, lease.subnets, lease.backend_type


async def serve(etcd: str) -> None:
    """Answers until the input ends."""
    crowd, reader = Crowd(etcd), asyncio.StreamReader(limit=1 << 26)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    calls = set[asyncio.Task[None]]()

    async def answer(request: dict[str, Any]) -> None:
        number, call = request.pop("id"), getattr(crowd, request.pop("call"))
        try:
            said = {"id": number, "result": await call(**request)}
        except Exception as error:  # told to the caller
            traceback.print_exc()
            said = {"id": number, "error": repr(error)}
        print(json.dumps(said), flush=True)

    while line := await reader.readline():
        task = asyncio.create_task(answer(json.loads(line)))
        calls.add(task)
        task.add_done_callback(calls.discard)


def main() -> None:
    """Runs the process until its input ends."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    gc.set_threshold(50_000, 20, 50)  # tables of millions of entries are no garbage
    asyncio.run(serve(sys.argv[1]))


if __name__ == "__main__":
    main()
