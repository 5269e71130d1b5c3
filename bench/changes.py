"""Changes in etcd until somebody hears of what came of them: what event_latency, burst and churn share."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from bench.bare_etcd import BareEtcd, bare_etcd
from bench.etcd import PREFIX
from bench.host import PROTOCOL, add_device, empty_host
from bench.leases import lease as lease_of
from bench.leases import subnet_address
from bench.listener import RouteListener
from bench.node import node_on
from bench.process import cpu_seconds, resident_mib, running
from bench.result import BenchFailed
from flannelette.services.core.leases.flannel_json import format_value
from flannelette.services.lease.stores.etcd.prefix import Keyspace
from flannelette.services.lease.stores.etcd.values import end_of
from lab.netns import NetworkNamespace

PATIENCE: Final = 120.0
_KEYS: Final = Keyspace(PREFIX)
_SETTLE_SECONDS: Final = 0.5


class News(Protocol):
    """What a listener hears, `bench.listener.Heard` for one."""

    @property
    def at(self) -> float: ...
    @property
    def gone(self) -> bool: ...
    @property
    def destination(self) -> bytes: ...


class Listener(Protocol):
    """The protocol of `bench.listener.RouteListener`."""

    async def hear(self, enough: Callable[[News], bool], patience: float) -> bool: ...


@dataclass
class Scene:
    """A program that follows etcd, and is measured; a connection to etcd, which changes it; and a listener."""

    etcd: BareEtcd
    listener: Listener
    namespace: NetworkNamespace | None
    """Where the routes are; None: nobody makes any."""
    cpu: Callable[[], dict[str, float]]
    """Reads the CPU seconds of those who are measured, by process."""
    memory: Callable[[], dict[str, float]]

    async def put(self, number: int, edition: int = 0) -> None:
        """Puts the lease of this number into etcd."""
        await self.etcd.put(*row(number, edition))

    async def delete(self, number: int) -> None:
        await self.etcd.delete(row(number)[0])


Stage: TypeAlias = Callable[[str], AbstractAsyncContextManager[Scene]]


def first_change(peers: int) -> int:
    """The number of a lease that is neither one of the peers nor near those that a node takes for itself."""
    return peers + 201


def destination(number: int) -> bytes:
    """Returns the destination of the route to a lease."""
    return subnet_address(number).packed


def row(number: int, edition: int = 0) -> tuple[bytes, bytes]:
    """Key and value of a lease, as flanneld puts it. Takes longer than the put: make it before the clock starts."""
    lease = lease_of(number, edition)
    return _KEYS.subnet(lease.name), format_value(lease).encode()


@asynccontextmanager
async def ours(endpoint: str) -> AsyncIterator[Scene]:
    """A node of ours, with all that etcd has in its kernel."""
    with empty_host() as namespace, node_on(namespace, endpoint) as node:
        node.start()
        await node.until_ready()
        await asyncio.sleep(_SETTLE_SECONDS)
        memory = lambda: {name: resident_mib(process) for name, process in node.running.items()}  # noqa: E731
        with RouteListener(namespace, PROTOCOL) as listener:
            async with bare_etcd(endpoint) as etcd:
                yield Scene(etcd, listener, namespace, node.cpu, memory)


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
            cpu, memory = (lambda: {"naive": cpu_seconds(process)}), (lambda: {"naive": resident_mib(process)})
            async with bare_etcd(endpoint) as etcd:
                yield Scene(etcd, listener, namespace, cpu, memory)


@asynccontextmanager
async def watch_only(endpoint: str) -> AsyncIterator[Scene]:
    """Measures etcd alone, whose time is in that of every program: a watch on a plain socket hears of the lease
    itself.
    """
    listener = _Watch()
    async with bare_etcd(endpoint) as watcher, bare_etcd(endpoint) as etcd:
        await watcher.watch(_KEYS.subnets, end_of(_KEYS.subnets), listener.take)
        await asyncio.sleep(_SETTLE_SECONDS)
        yield Scene(etcd, listener, None, dict, dict)


class _Seen(NamedTuple):
    at: float
    gone: bool
    destination: bytes


class _Watch:
    def __init__(self) -> None:
        self._queue: asyncio.Queue[News] = asyncio.Queue()

    def take(self, at: float, event: Any) -> None:
        name = event.kv.key.removeprefix(_KEYS.subnets).decode()
        self._queue.put_nowait(_Seen(at, bool(event.type), IPv4Address(name.partition("-")[0]).packed))

    async def hear(self, enough: Callable[[News], bool], patience: float) -> bool:
        try:
            async with asyncio.timeout(patience):
                while not enough(await self._queue.get()):
                    pass
        except TimeoutError:
            return False
        return True


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

    def heard(self, heard: News) -> None:
        """What the listener says."""
        since = self._sent.pop((heard.destination, heard.gone), None)
        if since is not None:
            self.milliseconds.append(1000 * (heard.at - since))
