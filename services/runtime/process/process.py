"""A service as a process: parses settings, runs all tasks in one TaskGroup, and returns an exit code.

It ends when clients cannot reach it any more, because its socket was deleted or its network namespace was replaced. A
container can join the network namespace of another container. A restart of the other one creates a new namespace, and
this process stays in the old one, where no packet arrives. The owner of the namespace therefore records it in a file,
and a service that reads another namespace there ends. Its supervisor restarts it in the new one. It does not end
earlier: without an owner there is no namespace to start in, and docker tries only once.
"""

import asyncio
import atexit
import gc
import os
import signal
import sys
import time
from asyncio import TaskGroup
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from flannelette.services.core.errors import FlanneletteError, Misconfigured, Unavailable
from flannelette.services.runtime.os.files import REMOVED, Watch
from flannelette.services.runtime.os.processes import end_with_parent, limit_arenas
from flannelette.services.runtime.process.settings import (
    HelpRequested,
    ProcessSettings,
    listen_addresses,
    parse_settings,
    transport_of,
    unknown_variables,
)
from flannelette.services.runtime.process.start_notice import StartNotice, notify_status
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.rpc.authorization import Authorizer, Callers
from flannelette.services.runtime.rpc.server import (
    AddToServer,
    Server,
    bound,
    raise_descriptor_limit,
    server_options,
    socket_paths,
    tcp_ports,
)
from flannelette.services.runtime.rpc.transport import PLAIN, Transport
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import configure_logs, get_logger, label_lines
from flannelette.services.runtime.telemetry.metrics import Gauge, http_server, label_network
from flannelette.services.runtime.tls import Credentials, expiry_findings

log = get_logger()

_POLL_SECONDS: Final = 1.0
_REFRESH_SECONDS: Final = 60.0
"""Pause between checks where inotify is not available: the kernel allows each user 128 instances by default."""
_SELF: Final = Path("/proc/self/ns/net")


def this_namespace() -> str:
    """The namespace of this process as readlink(1) prints /proc/self/ns/net: `net:[4026531840]`."""
    return str(_SELF.readlink())


async def until_moved(record: Path, poll_seconds: float = _POLL_SECONDS) -> str:
    """Waits until the record names another namespace than that of this process; returns a sentence that says so.

    A missing or empty record counts as no change. A check takes 20 µs.
    """
    here = this_namespace()
    while True:
        there = _read(record)
        if there and there != here:
            return (
                f"this process is in the network namespace {here}, but {record} says that it belongs in {there}: "
                "the service ends, so that its supervisor restarts it there"
            )
        await asyncio.sleep(poll_seconds)


async def until_deleted(path: Path) -> str:
    """Waits until the unix socket at this path is deleted; returns a sentence that says so. grpc cannot rebind it."""
    with closing(Watch(path.parent, REMOVED)) as watch:
        while True:
            is_watched = watch.open()  # before the check, so that no later removal is missed
            if not _is_socket(path):
                break
            await (watch.next() if is_watched else asyncio.sleep(_REFRESH_SECONDS))
    return f"the socket {path} was deleted: the service ends, so that its supervisor restarts it with a new socket"


def _is_socket(path: Path) -> bool:
    return path.is_socket()


def _read(record: Path) -> str:
    try:
        return record.read_text().strip()
    except FileNotFoundError:
        return ""


S = TypeVar("S", bound=ProcessSettings)
Job = Callable[[], Coroutine[Any, Any, None]]

_READY = Gauge("flannelette_ready", "1 when the service is ready, as gRPC health says")
_CERTIFICATE_EXPIRY = Gauge(
    "flannelette_tls_certificate_expiry_timestamp_seconds", "When the TLS certificate in force expires", ["file"]
)
_AUTHORITY_EXPIRY = Gauge(
    "flannelette_tls_authority_expiry_timestamp_seconds",
    "When the last of the authorities in force expires",
    ["file"],
)
_CERTIFICATE_REFUSED = Gauge(
    "flannelette_tls_files_refused", "1 while the TLS files cannot be used and those read before stay in force"
)
_GRACE_SECONDS: Final = 0.5
_SETTLE_SECONDS: Final = 1.0
"""Time after which reasons against readiness are logged; those of a normal start pass sooner."""
_CERTIFICATE_SECONDS: Final = 1.0
_START_SECONDS: Final = 5.0
"""Time after which nearly all objects that a service has made stay."""
_COLLECT_AT_START: Final = (300_000, 50, 20)
"""Thresholds of Python's cycle collector. Of the 200,000 objects that 10,000 leases make at a start, 650 are garbage;
with the default thresholds a tenth of the time goes into searching them."""
_COLLECT: Final = (50_000, 50, 20)


class Process:
    """The servicers and tasks of a service: its `build` adds them, `run` runs them.

    Several services may run in one process of the system, each with a Process.
    """

    def __init__(self, name: str, transport: Transport = PLAIN) -> None:
        self.name = name
        self.transport = transport
        """Makes every channel to another service."""
        self.health = Health()
        self.stopping = asyncio.Event()
        """Set on SIGTERM and SIGINT: streams end; the jobs are cancelled soon after."""
        self.jobs: dict[str, Job] = {}
        """Tasks that run as long as the process. An exception in one ends the process."""
        self.servicers: dict[str, AddToServer] = {}
        """Servicers by full name, `flannelette.lease.v1.LeaseService`."""
        if transport.credentials is not None:
            credentials = transport.credentials
            self.health.finders.append(lambda: expiry_findings(credentials, time.time()))
        self.on_readiness: Callable[[bool, list[str]], None] = lambda ready, reasons: None
        """Called when the service is ready, or for a second was not, with the reasons."""
        self.has_begun = False
        """Whether it is built and about to serve."""
        self.told: list[str] | None = None
        """The reasons against readiness that were told last, none for a service that is ready; None: nothing yet."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when the health or what was told of it has changed."""
        self._unreachable = ""
        """Why clients cannot reach the process any more; empty: they can."""

    async def run(self, settings: ProcessSettings) -> None:
        """Serves until `stopping` is set. Raises errors of jobs in an ExceptionGroup, Unavailable: unreachable."""
        addresses = listen_addresses(settings, self.name)
        options = server_options(settings.max_connections, len(addresses))
        credentials, callers = self.transport.credentials, Callers()
        if settings.max_connections_per_address < 1:
            most = settings.max_connections_per_address
            raise Misconfigured(f"--max-connections-per-address is {most}: use 1 or more")
        if ports := tcp_ports(addresses):
            self.jobs["connections"] = _limiter(ports, settings.max_connections_per_address, credentials, callers)
        server = Server(self.servicers, self._authorizer(addresses, callers), options, settings.served_network)
        with ExitStack() as held:
            for address in addresses:
                held.enter_context(bound(server.grpc, address, self.transport))
            await server.start()
            try:
                async with http_server(settings.healthz_ip, settings.healthz_port, self.health), TaskGroup() as group:
                    tasks = [group.create_task(job(), name=name) for name, job in self.jobs.items()]
                    tasks.append(group.create_task(self._publish_health(server), name="health"))
                    if self.transport.credentials is not None:
                        rotation = self._follow_certificate(self.transport.credentials, addresses)
                        tasks.append(group.create_task(rotation, name="certificate"))
                    ends = [until_deleted(path) for path in socket_paths(addresses)]
                    if settings.network_namespace_file:
                        ends.append(until_moved(Path(settings.network_namespace_file)))
                    tasks += [group.create_task(self._stop_after(end), name="reachability") for end in ends]
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

    def _authorizer(self, addresses: list[str], callers: Callers) -> Authorizer:
        """Makes what judges calls. Without TLS clients have no identity, and may call everything."""
        has_tls = self.transport.credentials is not None
        has_unix = any(address.startswith("unix:") for address in addresses)
        return Authorizer(plain=has_unix or not has_tls, tls=has_tls, callers=callers)

    async def _follow_certificate(self, credentials: Credentials, addresses: list[str]) -> None:
        """Reads replaced TLS files. The service is not ready while its certificate is not valid for TCP clients."""
        seen = credentials.last_read
        while True:
            _CERTIFICATE_EXPIRY.labels(str(credentials.files.certificate)).set(
                credentials.material.certificate.not_after
            )
            _AUTHORITY_EXPIRY.labels(str(credentials.files.authorities)).set(credentials.authority_not_after)
            if tcp_ports(addresses):  # else only servers see the certificate, and the feed reports their errors
                self.health.set("certificate", credentials.invalid_reason())
            await asyncio.sleep(_CERTIFICATE_SECONDS)
            # The three files are replaced one after the other: they are read once two checks in a row find the same.
            before, seen = seen, credentials.files.stamp()
            if seen == before and seen != credentials.last_read:
                await _replace_certificate(credentials)

    async def _stop_after(self, end: Coroutine[Any, Any, str]) -> None:
        reason = await end
        if not self.stopping.is_set():
            self._unreachable = reason
            self.stopping.set()

    async def _publish_health(self, server: Server) -> None:
        was_ready = False
        while True:
            ready, reasons = self.health.ready, self.health.reasons
            if ready != was_ready:
                await server.publish(ready=ready)
            if ready and not was_ready:
                log.info("ready")
                self.on_readiness(True, [])
            if ready:
                self.told = []
            self.on_change()
            was_ready = ready
            unlogged = reasons != self.told and not self.stopping.is_set()
            try:
                async with asyncio.timeout(_SETTLE_SECONDS if unlogged and not ready else None):
                    await self.health.changed()
            except TimeoutError:
                log.warning("not ready", reasons=reasons)
                self.told = reasons
                self.on_change()
                self.on_readiness(False, reasons)


class Announcer:
    """Tells systemd, and whoever reads the metrics, how ready the services of this process are."""

    def __init__(self, processes: Sequence[Process]) -> None:
        self._processes = processes
        self._notice = StartNotice()
        self._told: list[str] | None = None
        for process in processes:
            process.on_change = self._tell

    def _tell(self) -> None:
        everything = self._processes
        _READY.set(all(each.told is not None and each.health.ready for each in everything))
        if all(each.has_begun and each.health.has_started for each in everything):
            self._notice.give()
        told = [each.told for each in everything]
        reasons = [reason for each in told for reason in each or ()]
        if (reasons or None not in told) and reasons != self._told:
            self._told = reasons
            notify_status(reasons)


Build = Callable[[S, Process], AbstractAsyncContextManager[object]]


@dataclass(frozen=True)
class Part(Generic[S]):
    """A service that runs in this process of the system."""

    name: str
    settings: S
    build: Build[S]


def run(name: str, kind: type[S], build: Build[S], arguments: list[str] | None = None) -> int:
    """The whole life of a service; returns the exit code.

    `build` gets the settings, adds servicers and tasks to the Process, and frees its resources when its block ends.
    0: stopped by SIGTERM or SIGINT (or --help, --version). 1: could not start, or a job crashed. 2: wrong flags.
    """
    end_with_parent()
    program = f"flannelette-{name}"
    try:
        settings = parse_settings(kind, program, sys.argv[1:] if arguments is None else arguments, os.environ)
    except HelpRequested as help_text:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # its reader may be `head`
        print(help_text)
        return 0
    except Misconfigured as error:
        print(f"{program}: {error}", file=sys.stderr)
        return 2
    if settings.version:
        print(f"{program} {version()}")
        return 0
    configure_logs(name, settings.log_format, settings.v, settings.served_network)
    label_network(settings.served_network)
    for line in unknown_variables(kind, os.environ).values():
        log.warning(line)
    return run_parts(program, [Part(name, settings, build)])


Around = Callable[[Sequence[Process]], AbstractAsyncContextManager[object]]


def run_parts(program: str, parts: Sequence[Part[Any]], around: Around = lambda processes: nullcontext()) -> int:
    """Runs services in one event loop until all are stopped or one fails; returns the exit code of `run`.

    `around` is entered before they begin, and left when they have ended.
    """
    gc.set_threshold(*_COLLECT_AT_START)
    atexit.register(gc.freeze)  # Python searches for garbage a last time, up to 60 ms, and the memory goes anyway
    raise_descriptor_limit()
    limit_arenas()
    try:
        asyncio.run(_serve(parts, around))
    except Exception as error:  # the outermost handler: errors of ours are one line, others a traceback
        for leaf in _leaves(error):
            if isinstance(leaf, FlanneletteError):
                print(f"{program}: {leaf}", file=sys.stderr)
            else:
                log.critical("a job crashed; the service ends", exc_info=leaf)
        return 1
    return 0


async def _serve(parts: Sequence[Part[Any]], around: Around) -> None:
    processes = [Process(part.name, transport_of(part.settings)) for part in parts]

    def stop() -> None:
        for process in processes:
            process.stopping.set()

    loop = asyncio.get_running_loop()
    loop.call_later(_START_SECONDS, gc.freeze)
    loop.call_later(_START_SECONDS, gc.set_threshold, *_COLLECT)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    Announcer(processes)
    async with around(processes):
        pairs = zip(parts, processes, strict=True)
        tasks = {process: asyncio.create_task(_run_part(part, process)) for part, process in pairs}
        await asyncio.wait(tasks.values(), return_when=asyncio.FIRST_COMPLETED)
        stop()
        for process, task in tasks.items():
            if not process.has_begun:
                task.cancel()
        await asyncio.wait(tasks.values())
    if errors := [error for each in tasks.values() if not each.cancelled() and (error := each.exception())]:
        raise BaseExceptionGroup("services have failed", errors)


async def _run_part(part: Part[Any], process: Process) -> None:
    label_lines(part.name)
    async with part.build(part.settings, process):
        process.has_begun = True
        await process.run(part.settings)


def _limiter(ports: frozenset[int], most: int, credentials: Credentials | None, callers: Callers) -> Job:
    """Limits connections over TCP. What does it is imported here, because a service on a unix socket has none."""
    from flannelette.services.runtime.rpc.connection_limits import ConnectionLimiter

    limiter = ConnectionLimiter(ports, most, callers if credentials else None)
    if credentials is not None:
        credentials.on_handshake = limiter.note_handshake
    return limiter.run


async def _replace_certificate(credentials: Credentials) -> None:
    try:
        await asyncio.to_thread(credentials.replace)
    except Misconfigured as error:
        _CERTIFICATE_REFUSED.set(1)
        log.error("the new TLS files cannot be used; those read before stay in force", reason=str(error))
    else:
        _CERTIFICATE_REFUSED.set(0)
        log.info("new TLS files are in force", certificate=str(credentials.files.certificate))


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
