"""Keeps the proxy of backend `udp` running, and says why it does not run."""

import asyncio
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from services.runtime.telemetry.logs import get_logger

log = get_logger()

_FIRST_PAUSE: Final = 0.05
_LAST_PAUSE: Final = 2.0
_END_SECONDS: Final = 2.0


async def keep_running(command: Sequence[str], report: Callable[[str], None]) -> None:
    """For ever: runs a Python module with arguments, again whenever it ends; ends it when this is cancelled.

    It prints a line once it works; `report` is told the reason while it does not, and nothing when it does.
    """
    pause, told = _FIRST_PAUSE, ""
    report("the proxy of backend udp starts")
    while True:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", *command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, env=environment
        )
        assert process.stdout is not None  # noqa: S101 - pipes, see above
        assert process.stderr is not None  # noqa: S101
        try:
            if await process.stdout.readline():
                report("")
                log.info("the proxy of backend udp runs", pid=process.pid)
                pause, told = _FIRST_PAUSE, ""
            errors = await process.stderr.read()
            await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                with suppress(TimeoutError):
                    async with asyncio.timeout(_END_SECONDS):
                        await process.wait()
        lines = errors.decode(errors="replace").strip().splitlines()
        reason = lines[-1] if lines else f"the proxy of backend udp ended with status {process.returncode}"
        report(reason)
        if reason != told:
            log.warning("the proxy of backend udp does not run; it is started again", reason=reason)
        told = reason
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LAST_PAUSE)
