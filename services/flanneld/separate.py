"""The three services of each network as children of this process, which ends them together when one of them does.

Their metrics are one exposition; every sample gets a label `service`.
"""

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flannelette.services.core.errors import Misconfigured
from flannelette.services.flanneld.command import Command, Service
from flannelette.services.runtime.os.processes import with_parent
from flannelette.services.runtime.process.settings import listen_addresses, transport_of, unknown_variables
from flannelette.services.runtime.process.start_notice import StartNotice, notify_status
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import exposition, http_server

log = get_logger()


def run(command: Command) -> int:
    """Runs the services; returns the exit code: 0 stopped, 1 a service ended by itself or the port is in use."""
    health = health_before(command.services)
    try:
        return asyncio.run(_serve(command, health))
    except Misconfigured as error:
        print(f"flanneld: {error}", file=sys.stderr)
        return 1


async def _serve(command: Command, health: Health) -> int:
    settings = command.settings
    metrics = partial(collect, {child.name: child.http_socket for child in command.services})
    async with http_server(settings.healthz_ip, settings.healthz_port, health, metrics):
        return await supervise(command.services, health)


_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.5


def health_before(children: Sequence[Service]) -> Health:
    """Returns the health before any child is ready, with one unmet condition for each of them."""
    health = Health()
    for child in children:
        health.set(child.name, f"{child.name} is not ready yet")
    return health


async def supervise(children: Sequence[Service], health: Health) -> int:
    """Runs the services until SIGTERM, SIGINT or the end of one of them; returns the exit code.

    None outlives this process, however it ends. The kernel's state stays in any case.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    processes = {child.name: await _start(child) for child in children}
    watches = [asyncio.create_task(_watch(child, health)) for child in children]
    watches.append(asyncio.create_task(_tell_systemd(health)))
    ends = {asyncio.create_task(process.wait(), name=name) for name, process in processes.items()}
    stop = asyncio.create_task(stopping.wait())
    done, _ = await asyncio.wait({*ends, stop}, return_when=asyncio.FIRST_COMPLETED)
    for watch in (*watches, stop):
        watch.cancel()
    if stop not in done:
        for end in done:
            log.error(
                "a service has ended and the others are stopped; its last lines say why", service=end.get_name()
            )
    await _end(processes)
    return 0 if stop in done else 1


async def _start(child: Service) -> Process:
    # Of variables that no flag has, this process has told.
    left_out = {"NOTIFY_SOCKET", *unknown_variables(type(child.settings), os.environ)}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    program = (sys.executable, "-P", "-m", f"flannelette.services.{child.kind}.main")
    return await asyncio.create_subprocess_exec(*program, *child.arguments, env=environment | with_parent())


async def _end(processes: Mapping[str, Process]) -> None:
    for process in processes.values():
        with suppress(ProcessLookupError):
            process.terminate()
    ends = asyncio.gather(*(process.wait() for process in processes.values()))
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            await asyncio.shield(ends)
    except TimeoutError:
        for process in processes.values():
            with suppress(ProcessLookupError):
                process.kill()
        await ends


async def _watch(child: Service, health: Health) -> None:
    """Keeps `health` as the service's own gRPC health says."""
    address = listen_addresses(child.settings, child.kind)[0]
    async with transport_of(child.settings).channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        while True:
            with suppress(grpc.RpcError):
                async for answer in stub.Watch(health_pb2.HealthCheckRequest()):
                    is_ready = answer.status == health_pb2.HealthCheckResponse.SERVING
                    health.set(child.name, "" if is_ready else f"{child.name} is not ready")
            health.set(child.name, f"{child.name} does not answer")
            await asyncio.sleep(_PAUSE_SECONDS)


async def _tell_systemd(health: Health) -> None:
    was_ready, notice = False, StartNotice()
    while True:
        if health.ready and not was_ready:
            log.info("ready")
            notice.give()
        if health.ready is not was_ready:
            notify_status(health.reasons)
        was_ready = health.ready
        await health.changed()


_SECONDS: Final = 2.0
_REQUEST: Final = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
_HEAD: Final = re.compile(r"# (?:HELP|TYPE) (\S+) ")
_SAMPLE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?( .+)")
_UP: Final = """\
# HELP flannelette_up 1 while the service answers, 0 otherwise
# TYPE flannelette_up gauge
flannelette_up {}
"""


async def collect(sockets: Mapping[str, Path]) -> tuple[str, bytes]:
    """Content type and exposition of this process and of the services that serve HTTP on these unix sockets.

    `flannelette_up` is 0 for a service that does not answer within two seconds; its other metrics are missing then.
    """
    kind, own = exposition()
    texts = await asyncio.gather(*(_fetch(path) for path in sockets.values()))
    services = {name: _UP.format(int(bool(text))) + text for name, text in zip(sockets, texts, strict=True)}
    return kind, merge({**services, "flanneld": own.decode()}).encode()


def merge(texts: Mapping[str, str]) -> str:
    """One exposition from the expositions of several services, by the name of the service.

    Every family is there once, with the HELP and TYPE of the first service that has it, and its samples together, as
    Prometheus' text format requires.
    """
    heads: dict[str, dict[str, None]] = {}
    samples: dict[str, list[str]] = {}
    for service, text in texts.items():
        family, known = "", frozenset(heads)
        for line in text.split("\n"):
            if head := _HEAD.match(line):
                family = head[1]
                if family not in known:
                    heads.setdefault(family, {})[line] = None
            elif sample := _SAMPLE.fullmatch(line):
                name, labels, value = sample.groups()
                rest = f",{labels}" if labels else ""
                samples.setdefault(family, []).append(f'{name}{{service="{service}"{rest}}}{value}')
    return "".join(f"{line}\n" for family in heads for line in (*heads[family], *samples.get(family, ())))


async def _fetch(path: Path) -> str:
    """The exposition that is served there; empty: nobody answered with one."""
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                writer.write(_REQUEST)
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
    except (TimeoutError, OSError):
        return ""
    return body.decode() if head.startswith(b"HTTP/1.1 200 ") else ""
