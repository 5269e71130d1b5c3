"""The children: started together, watched, ended together. systemd or a human starts them again."""

import asyncio
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from flannelette.services.flanneld.flags import Child
from flannelette.services.runtime.os.parent import with_parent
from flannelette.services.runtime.process.options import listen_addresses, transport_of
from flannelette.services.runtime.process.settings import unknown_variables
from flannelette.services.runtime.process.start_notice import StartNotice, notify_status
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_PATIENCE_SECONDS: Final = 10.0
_PAUSE_SECONDS: Final = 0.5


def health_before(children: Sequence[Child]) -> Health:
    """Returns the health before any child is ready, with one unmet condition for each of them."""
    health = Health()
    for child in children:
        health.set(child.name, f"{child.name} is not ready yet")
    return health


async def supervise(children: Sequence[Child], health: Health) -> int:
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


async def _start(child: Child) -> Process:
    # Of variables that no flag has, this process has told.
    left_out = {"NOTIFY_SOCKET", *unknown_variables(type(child.settings), os.environ)}
    environment = {name: value for name, value in os.environ.items() if name not in left_out}
    program = (sys.executable, "-P", "-m", f"flannelette.services.{child.service}.main")
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


async def _watch(child: Child, health: Health) -> None:
    """Keeps `health` as the service's own gRPC health says."""
    address = listen_addresses(child.settings, child.service)[0]
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
