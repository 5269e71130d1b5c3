"""The three services of a network in one process, on one event loop. This alone knows all three.

The dataplane and masq follow the lease service without a wire between them: the leases of their tables are those of
its table. Everybody else calls the services on their sockets, as if they were processes of their own.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import FlanneletteError, Unavailable
from flannelette.services.core.leases.table import Step
from flannelette.services.dataplane import main as dataplane
from flannelette.services.flanneld.command import Command
from flannelette.services.lease import main as lease
from flannelette.services.lease.service import LeaseService
from flannelette.services.lease.settings import LeaseSettings
from flannelette.services.masq import main as masq
from flannelette.services.runtime.lease.feed import CALL_SECONDS, Connection, connect_over_grpc
from flannelette.services.runtime.process.process import Part, Process, run_parts
from flannelette.services.runtime.process.settings import listen_addresses
from flannelette.services.runtime.rpc.transport import Transport
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import (
    ALL,
    GaugeMetricFamily,
    exposition,
    http_server,
    label_network,
)

log = get_logger()

_UP: Final = "flannelette_up", "1 while the service answers, 0 otherwise"
_READY: Final = "flannelette_ready"


class LocalLeases:
    """The lease service of this process, and how its other services get a connection to it."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._is_built = asyncio.Event()
        self._service: LeaseService
        self.is_stopping: Callable[[], bool] = lambda: False

    @asynccontextmanager
    async def build(self, settings: LeaseSettings, process: Process) -> AsyncIterator[None]:
        """Builds it as in a process of its own."""
        async with lease.build(settings, process) as self._service:
            self.is_stopping = process.stopping.is_set
            self._is_built.set()
            yield

    def connect(self, address: str, node: str, transport: Transport, machine: str) -> Connection:
        """See Connect. The lease service at another address is that of another process."""
        if address not in self._addresses:
            return connect_over_grpc(address, node, transport, machine)
        return LocalConnection(self, address, node, machine)

    async def service(self) -> LeaseService:
        """Returns it as soon as it is built."""
        await self._is_built.wait()
        return self._service


class LocalConnection(Connection):
    """The connection to the lease service of this process, whose calls are made without a wire."""

    def __init__(self, leases: LocalLeases, address: str, node: str, machine: str) -> None:
        super().__init__(address, node, machine)
        self._leases = leases

    async def watch(self, request: pb.WatchLeasesRequest) -> AsyncGenerator[Step, None]:
        """See Connection."""
        service = await self._leases.service()
        try:
            async with aclosing(service.follow(request)) as steps:
                async for step in steps:
                    yield step
        except FlanneletteError as error:
            if self._leases.is_stopping():
                await asyncio.Event().wait()  # all services stop at once, and none tells that another is away
            raise Unavailable(str(error)) from None

    async def _call(self, method: str, request: Any, seconds: float = CALL_SECONDS) -> Any:
        try:
            async with asyncio.timeout(seconds):
                return await getattr(await self._leases.service(), method)(request, None)
        except TimeoutError:
            raise Unavailable(f"{method} took longer than {seconds:g} s") from None
        except FlanneletteError:
            raise
        except Exception as error:
            log.error("a call failed unexpectedly", method=method, exc_info=error)
            raise Unavailable(f"internal error ({type(error).__name__}); the service's log has more") from None


def run(command: Command) -> int:
    """Runs the services; returns the exit code: 0 stopped, 1 one failed or could not start."""
    of_lease, of_dataplane, of_masq = (replace(each.settings, healthz_port=0) for each in command.services)
    leases = LocalLeases(listen_addresses(of_lease, "lease"))
    label_network(of_lease.served_network)
    parts: list[Part[Any]] = [
        Part("lease", of_lease, leases.build),
        Part("dataplane", of_dataplane, partial(dataplane.build, connect=leases.connect)),
        Part("masq", of_masq, partial(masq.build, connect=leases.connect)),
    ]

    def http(processes: Sequence[Process]) -> AbstractAsyncContextManager[None]:
        settings, health = command.settings, HealthOfAll(processes)
        return http_server(settings.healthz_ip, settings.healthz_port, health, partial(metrics, processes))

    return run_parts("flanneld", parts, http)


class HealthOfAll(Health):
    """The readiness of several services for /readyz."""

    def __init__(self, processes: Sequence[Process]) -> None:
        super().__init__()
        self._processes = processes

    @property
    def is_in_service(self) -> bool:
        """Whether all of them are in service."""
        return all(each.has_begun and each.health.is_in_service for each in self._processes)


async def metrics(processes: Sequence[Process]) -> tuple[str, bytes]:
    """The metrics of the services in one exposition, each sample with the label `service`."""
    return exposition(_OfServices(processes))


class _OfServices:
    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes

    def collect(self) -> Iterator[Any]:
        """See Collector."""
        up = GaugeMetricFamily(*_UP, labels=["service"])
        for process in self._processes:
            up.add_metric([process.name], 1)
        yield up
        for family in ALL.collect():
            if family.name == _READY:
                (whole,) = family.samples
                family.samples = [
                    whole._replace(labels={"service": each.name, **whole.labels}, value=float(each.health.ready))
                    for each in self._processes
                ]
            else:
                owner = owner_of(family.name)
                family.samples = [each._replace(labels={"service": owner, **each.labels}) for each in family.samples]
            yield family


_OF_ALL: Final = ("tls", "connections", "handshakes", "callers", "calls")
_OWNERS: Final = (
    ("flannelette_lease_", "lease"),
    ("flannelette_etcd_", "lease"),
    ("flannelette_masq_", "masq"),
    ("flannelette_convergence_", "lease"),
    *((f"flannelette_{each}_", "flanneld") for each in _OF_ALL),
    ("flannelette_", "dataplane"),
)


def owner_of(family: str) -> str:
    """The service that a family of metrics is of; what services share is flanneld's, as the process itself is."""
    return next((owner for prefix, owner in _OWNERS if family.startswith(prefix)), "flanneld")
