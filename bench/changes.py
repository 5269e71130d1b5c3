"""Changes in etcd until a netlink listener hears of their routes: what event_latency, burst and churn share."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from bench.etcd import PREFIX, client_of
from bench.host import PROTOCOL, add_device, empty_host
from bench.leases import lease as lease_of
from bench.listener import Heard, RouteListener
from bench.node import node_on
from bench.process import cpu_seconds, resident_mib, running
from bench.result import BenchFailed
from lab.netns import NetworkNamespace
from services.core.flannel import format_value
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.records import Delete, Put, Transaction

PATIENCE: Final = 120.0
_KEYS: Final = Keyspace(PREFIX)
_SETTLE_SECONDS: Final = 0.5


@dataclass
class Scene:
    """Somebody who follows etcd, who is measured; an etcd client, who changes it; and a listener."""

    client: EtcdClient
    listener: RouteListener
    namespace: NetworkNamespace
    cpu: Callable[[], dict[str, float]]
    """Of those who are measured, by process."""
    memory: Callable[[], dict[str, float]]

    async def put(self, number: int, edition: int = 0) -> None:
        """A lease, as flanneld puts it."""
        lease = lease_of(number, edition)
        value = format_value(lease).encode()
        await self.client.transact(Transaction((), (Put(_KEYS.subnet(lease.name), value),)))

    async def delete(self, number: int) -> None:
        key = _KEYS.subnet(lease_of(number).name)
        await self.client.transact(Transaction((), (Delete(key),)))


Stage: TypeAlias = Callable[[str], AbstractAsyncContextManager[Scene]]


def first_change(peers: int) -> int:
    """The number of a lease that is neither one of the peers nor near those that a node takes for itself."""
    return peers + 201


def destination(number: int) -> bytes:
    """Of the route to a lease."""
    return lease_of(number).subnets[0].cidr.network_address.packed


@asynccontextmanager
async def ours(endpoint: str) -> AsyncIterator[Scene]:
    """A node of ours, with all that etcd has in its kernel."""
    with empty_host() as namespace, node_on(namespace, endpoint) as node:
        node.start()
        await node.until_ready()
        await asyncio.sleep(_SETTLE_SECONDS)
        with RouteListener(namespace, PROTOCOL) as listener:
            client = client_of(endpoint)
            memory = lambda: {name: resident_mib(process) for name, process in node.running.items()}  # noqa: E731
            try:
                yield Scene(client, listener, namespace, node.cpu, memory)
            finally:
                await client.close()


@asynccontextmanager
async def naive(endpoint: str) -> AsyncIterator[Scene]:
    """The naive node; its kernel is empty whatever is in etcd, which helps it."""
    with empty_host() as namespace:
        add_device(namespace)
        log = Path("/run/naive.log")
        with (
            RouteListener(namespace, PROTOCOL) as listener,
            running(sys.executable, "-m", "bench.naive_node", endpoint, namespace.name, log=log) as process,
        ):
            _until_watching(process, log)
            await asyncio.sleep(_SETTLE_SECONDS)
            client = client_of(endpoint)
            try:
                yield Scene(
                    client,
                    listener,
                    namespace,
                    lambda: {"naive": cpu_seconds(process)},
                    lambda: {"naive": resident_mib(process)},
                )
            finally:
                await client.close()


def _until_watching(process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while "watching" not in log.read_text():
        if time.monotonic() > deadline or process.poll() is not None:
            raise BenchFailed(f"the naive node did not start: {log.read_text()[-500:]}")
        time.sleep(0.05)


@dataclass
class Clock:
    """When each change was sent, and when the listener heard of its route."""

    milliseconds: list[float] = field(default_factory=list)
    _sent: dict[tuple[bytes, bool], float] = field(default_factory=dict)

    @property
    def outstanding(self) -> int:
        """Changes that were not heard of."""
        return len(self._sent)

    def sent(self, number: int, *, gone: bool) -> None:
        """Right before it is sent."""
        self._sent[destination(number), gone] = time.monotonic()

    def heard(self, heard: Heard) -> None:
        """What the listener says."""
        since = self._sent.pop((heard.destination, heard.gone), None)
        if since is not None:
            self.milliseconds.append(1000 * (heard.at - since))
