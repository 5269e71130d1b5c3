"""One process: settings in, one TaskGroup that owns every task, an exit code out."""

import asyncio
import os
import signal
import sys
from asyncio import TaskGroup
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from services.core.errors import FlanneletteError, Misconfigured, Unavailable
from services.runtime import collector
from services.runtime.admission import Admission
from services.runtime.crowd import Crowd, raise_descriptor_limit, server_options, tcp_ports
from services.runtime.health import Health
from services.runtime.http import http_server
from services.runtime.listen import bound, socket_paths
from services.runtime.logs import configure_logs, get_logger
from services.runtime.options import ProcessSettings, listen_addresses, transport_of
from services.runtime.prometheus import Gauge
from services.runtime.server import AddToServer, Server
from services.runtime.settings import HelpRequested, parse_settings
from services.runtime.systemd import notify
from services.runtime.tls.rotation import follow
from services.runtime.transport import PLAIN, Transport
from services.runtime.version import version
from services.runtime.whereabouts import until_deleted, until_moved

log = get_logger()

S = TypeVar("S", bound=ProcessSettings)
Job = Callable[[], Coroutine[Any, Any, None]]

_READY = Gauge("flannelette_ready", "1 when the service is ready, as gRPC health and /readyz say")
_GRACE_SECONDS = 0.5
_SETTLE_SECONDS = 1.0
"""A reason that lasts so long is worth a line in the log; every service starts with a few that do not."""


class Process:
    """What a service is made of: its `build` fills it, `run` carries it out."""

    def __init__(self, name: str, transport: Transport = PLAIN) -> None:
        self.name = name
        self.transport = transport
        """For every channel to another service."""
        self.health = Health()
        self.stopping = asyncio.Event()
        """Set on SIGTERM and SIGINT: streams end; the jobs are cancelled soon after."""
        self.jobs: dict[str, Job] = {}
        """They run for the life of the process. An exception in one takes the process down."""
        self.servicers: dict[str, AddToServer] = {}
        """By full name, `flannelette.lease.v1.LeaseService`."""
        self._unreachable = ""
        """Why clients do not reach the process any more; empty: they do."""

    async def run(self, settings: ProcessSettings) -> None:
        """Serves until `stopping`. Raises what a job raised, in an ExceptionGroup, or Unavailable: it is cut off."""
        addresses = listen_addresses(settings, self.name)
        server = Server(self.servicers, self._admission(addresses), server_options(settings, len(addresses)))
        with ExitStack() as held:
            for address in addresses:
                held.enter_context(bound(server.grpc, address, self.transport))
            await server.start()
            try:
                async with http_server(settings.healthz_ip, settings.healthz_port, self.health), TaskGroup() as group:
                    tasks = [group.create_task(job(), name=name) for name, job in self.jobs.items()]
                    tasks.append(group.create_task(self._publish_health(server), name="health"))
                    if self.transport.credentials is not None:
                        rotation = follow(self.transport.credentials, partial(self._doubt_certificate, addresses))
                        tasks.append(group.create_task(rotation, name="certificate"))
                    if ports := tcp_ports(addresses):
                        crowd = Crowd(ports, settings.max_connections_per_address)
                        tasks.append(group.create_task(crowd.keep_small(), name="connections"))
                    ends = [until_deleted(path) for path in socket_paths(addresses)]
                    if settings.network_namespace_file:
                        ends.append(until_moved(Path(settings.network_namespace_file)))
                    tasks += [group.create_task(self._stop_after(end), name="whereabouts") for end in ends]
                    await self.stopping.wait()
                    log.info("stopping; the kernel stays as it is" if self.name != "lease" else "stopping")
                    self.health.stop()
                    await server.stop(_GRACE_SECONDS)
                    for task in tasks:
                        task.cancel()
            finally:
                await server.stop()
        if self._unreachable:
            raise Unavailable(self._unreachable)

    def _admission(self, addresses: list[str]) -> Admission | None:
        """Without TLS there is nobody to tell from anybody else: the listening addresses are the authority."""
        if self.transport.credentials is None:
            return None
        return Admission(plain=any(address.startswith("unix:") for address in addresses))

    def _doubt_certificate(self, addresses: list[str], doubt: str) -> None:
        """Not ready while no client trusts the certificate. Where only servers see it, the feed knows the effect."""
        if any(not address.startswith("unix:") for address in addresses):
            self.health.set("certificate", doubt)

    async def _stop_after(self, end: Coroutine[Any, Any, str]) -> None:
        reason = await end
        if not self.stopping.is_set():
            self._unreachable = reason
            self.stopping.set()

    async def _publish_health(self, server: Server) -> None:
        was_ready, is_told, said = False, False, [""]
        while True:
            ready, reasons = self.health.ready, self.health.reasons
            if ready != was_ready:
                await server.publish(ready=ready)
                _READY.set(ready)
            if ready and not was_ready:
                log.info("ready")
            if self.health.has_started and not is_told:
                is_told = True
                notify("READY=1")
            was_ready = ready
            unsaid = reasons != said and not self.stopping.is_set()
            try:
                async with asyncio.timeout(_SETTLE_SECONDS if unsaid and not ready else None):
                    await self.health.changed()
            except TimeoutError:
                log.warning("not ready", reasons=reasons)
                said = reasons
            else:
                said = [] if ready else said


Build = Callable[[S, Process], AbstractAsyncContextManager[None]]


def run(name: str, kind: type[S], build: Build[S], arguments: list[str] | None = None) -> int:
    """The whole life of a service; returns the exit code.

    `build` gets the settings, fills the Process, and frees what it made when its block ends.
    0: stopped by SIGTERM or SIGINT (or --help, --version). 1: could not start, or a job crashed. 2: wrong flags.
    """
    program = f"flannelette-{name}"
    try:
        settings = parse_settings(kind, program, sys.argv[1:] if arguments is None else arguments, os.environ)
    except HelpRequested as help_text:
        print(help_text)
        return 0
    except Misconfigured as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    if settings.version:
        print(f"{program} {version()}")
        return 0
    configure_logs(name, settings.log_format, settings.v)
    collector.configure()
    raise_descriptor_limit()
    try:
        asyncio.run(_serve(name, settings, build))
    except Exception as error:  # the last resort: it is said, in one line if it is ours, and the process ends
        for leaf in _leaves(error):
            if isinstance(leaf, FlanneletteError):
                print(f"{program}: {leaf}", file=sys.stderr)
            else:
                log.critical("a job crashed; the service ends", exc_info=leaf)
        return 1
    return 0


async def _serve(name: str, settings: S, build: Build[S]) -> None:
    process = Process(name, transport_of(settings))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, process.stopping.set)
    async with build(settings, process):
        await process.run(settings)


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
