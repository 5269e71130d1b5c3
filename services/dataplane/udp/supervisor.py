"""Keeps the proxy of backend `udp` running, and says why it does not run.

The proxy outlives the dataplane, so that packets pass while that restarts; the next dataplane's proxy takes over.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen
from typing import Final

from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_FIRST_PAUSE: Final = 0.05
_LAST_PAUSE: Final = 2.0
PROXY: Final = "flannelette.services.dataplane.udp.proxy"
READY: Final = "ready"


async def keep_running(device: str, address: str, port: int, path: Path, report: Callable[[str], None]) -> None:
    """Runs the proxy until cancelled, again whenever it ends. After a cancellation the proxy stays.

    It ends with its device, or when the next proxy takes over, which asks at the unix socket of this path. `report`
    is told why packets are not carried, and nothing when they are.
    """
    pauses, told = Backoff(_FIRST_PAUSE, _LAST_PAUSE), ""
    report("the proxy of backend udp starts")
    while True:
        process = _start(device, address, str(port), str(path))
        try:
            reason = await _follow(process, report)
        except asyncio.CancelledError:
            if process.poll() is None and not process.is_ready:
                process.terminate()
            raise
        if process.is_ready:
            pauses.reset()
            told = ""
        reason = reason or f"the proxy of backend udp ended with status {process.wait()}"
        report(reason)
        if reason != told:
            log.warning("the proxy of backend udp does not run; it is started again", reason=reason)
        told = reason
        await asyncio.sleep(pauses.next())


class _Process(Popen[bytes]):
    """The running proxy of one device."""

    is_ready = False


def _start(*arguments: str) -> _Process:
    """Starts the proxy in a session of its own, so that what interrupts the dataplane does not interrupt packets."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = (sys.executable, "-P", "-m", PROXY, *arguments)
    return _Process(command, stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, env=environment, start_new_session=True)


async def _follow(process: _Process, report: Callable[[str], None]) -> str:
    """Reads what the proxy says until it ends; the last of that, if it was a reason."""
    reader, last = asyncio.StreamReader(), ""
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), process.stdout
    )
    try:
        while line := await reader.readline():
            last = line.decode(errors="replace").strip()
            if last == READY:
                process.is_ready, last = True, ""
                log.info("the proxy of backend udp runs", pid=process.pid)
            report(last)
    finally:
        transport.close()
    await asyncio.to_thread(process.wait)
    return last
