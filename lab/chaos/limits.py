"""The limits that a service meets: no room on its disk, no descriptor, no memory; and what shows that it met one."""

import asyncio
import os
import resource
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

from lab import look
from lab.chaos.processes import going_on
from lab.chaos.scene import SERVICES, Hit, NoEffect, Scene

_MARGIN: Final = 4 << 20
"""Bytes that a process may still get."""
_MORE: Final = 16
"""Connections more than a service has descriptors for."""
_TRIES: Final = 20
"""Attempts with ever more connections, if the service has closed others meanwhile."""
_TURN: Final = 1.0
_NO_ROOM: Final = b"No space left on device"


@asynccontextmanager
async def disk_full(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """No byte more can be written, and a service that starts again finds it so. The logs are on that disk too."""
    ballast = scene.home(hit.host) / "ballast"
    logs = [scene.service(name, hit.host).program.log for name in SERVICES]
    before = [log.stat().st_size for log in logs]
    await asyncio.to_thread(_fill, ballast)
    try:
        await scene.kill(scene.service(hit.chance.choice(SERVICES), hit.host))
        yield
    finally:
        ballast.unlink()
    if any(_NO_ROOM in log.read_bytes()[size:] for log, size in zip(logs, before, strict=True)):
        hit.seen.append("a line of a log")


@asynccontextmanager
async def no_descriptors(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """A service gets no descriptor any more: not all of some new connections have an answer."""
    service = scene.service(hit.chance.choice(SERVICES), hit.host)
    used = [int(number) for number in os.listdir(f"/proc/{service.pid}/fd")]  # noqa: PTH208 - the kernel's, no disk
    most = max(used) + 1
    with ExitStack() as opened, limited(service.pid, resource.RLIMIT_NOFILE, most):
        connections = connected(service.program.socket, most - len(used) + _MORE, opened)
        yield
        for _ in range(_TRIES):
            if any(is_silent(connection) for connection in connections):
                break
            connections += connected(service.program.socket, _MORE, opened)
            await asyncio.sleep(_TURN)
        else:
            raise NoEffect(f"the {service.program.title} answers {len(connections)} new connections")
    hit.seen.append("a connection without an answer")


@asynccontextmanager
async def no_memory(scene: Scene, hit: Hit) -> AsyncIterator[None]:
    """A service gets a few megabytes more, and then none, under large calls; it may die of that, and come back."""
    service = scene.service(hit.chance.choice(SERVICES), hit.host)
    scene.doomed.add(service)
    restarts, said = service.restarts, list[str]()
    with limited(service.pid, resource.RLIMIT_DATA, _data(service.pid) + _MARGIN):
        async with going_on(look.call_with_much(service.program.address, said)):
            yield
    if service.restarts > restarts:
        hit.seen.append("its end")
    elif any(said):
        hit.seen.append("a call without success")


def connected(path: Path, count: int, opened: ExitStack) -> list[socket.socket]:
    """Connections to a service."""
    some = [opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(count)]
    for connection in some:
        connection.setblocking(False)
        with suppress(OSError):  # more wait there than may: such a one is silent
            connection.connect(str(path))
    return some


def is_silent(connection: socket.socket) -> bool:
    """Whether nothing has come: a gRPC server sends first, once it has accepted a connection."""
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except OSError:
        return True


@contextmanager
def limited(pid: int, what: int, most: int) -> Iterator[None]:
    """A process has this limit meanwhile."""
    before = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (most, before[1]))
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            resource.prlimit(pid, what, before)


def _data(pid: int) -> int:
    """Bytes that RLIMIT_DATA counts: unlike the address space, without what malloc has only reserved."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmData"].split()[0]) << 10


def _fill(path: Path) -> None:
    with path.open("wb", buffering=0) as file, suppress(OSError):
        room = os.statvfs(path)
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize)
        while True:
            file.write(bytes(4096))
