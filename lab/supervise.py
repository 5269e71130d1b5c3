"""Keeps processes running: one that ends is started again after a second, and counted."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Never

from lab.programs import Program

PAUSE: Final = 1.0
"""Seconds between the death of a process and its successor."""
_PATIENCE: Final = 5.0
"""Seconds that a process has between SIGTERM and SIGKILL."""
_DIE_WITH_US: Final = ("setpriv", "--pdeathsig", "KILL")
_NOT_OURS: Final = ("FLANNELD_", "NODE_NAME", "NOTIFY_SOCKET")
"""What the user's environment may say to a flannel daemon of theirs is not meant for the lab."""


class Supervised:
    """One program that is kept running while `run` runs."""

    def __init__(self, program: Program, died: Callable[["Supervised", int], None]) -> None:
        self.program = program
        self.restarts = 0
        self._died = died
        self._process: subprocess.Popen[bytes] | None = None
        self._started = asyncio.Event()

    async def run(self) -> Never:
        """Runs it for ever. When cancelled, it is stopped: SIGTERM, and SIGKILL if that does not help."""
        try:
            while True:
                self._process = _start(self.program)
                self._started.set()
                await _ended(self._process)
                self._started.clear()
                self.restarts += 1
                self._died(self, self._process.returncode)
                await asyncio.sleep(PAUSE)
        finally:
            if self._process:
                await _stop(self._process)

    async def kill(self) -> None:
        """Kills it with SIGKILL; returns when its successor has been started."""
        await self._started.wait()
        assert self._process is not None  # noqa: S101 - it was started
        self._started.clear()
        self._process.kill()
        await self._started.wait()

    @property
    def pid(self) -> int:
        """The process id of the program, or of its last process while there is none."""
        assert self._process is not None  # noqa: S101 - it was started
        return self._process.pid

    def signal(self, number: int) -> None:
        """Sends it a signal."""
        assert self._process is not None  # noqa: S101 - it was started
        self._process.send_signal(number)

    def tail(self, lines: int = 8) -> str:
        """The end of what it printed."""
        with suppress(FileNotFoundError):
            return "\n".join(self.program.log.read_text(errors="replace").splitlines()[-lines:])
        return ""


def _start(program: Program) -> subprocess.Popen[bytes]:
    program.directory.mkdir(exist_ok=True)
    with program.log.open("ab") as log:
        return subprocess.Popen(
            [*_DIE_WITH_US, *program.namespace.command(*program.arguments)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us alone: we stop them in order
            env={name: value for name, value in os.environ.items() if not name.startswith(_NOT_OURS)},
        )


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Returns when it has ended and its return code stands. A pidfd tells: no thread, no signal handler."""
    if process.poll() is not None:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    descriptor = os.pidfd_open(process.pid)
    loop.add_reader(descriptor, ended.set)
    try:
        await ended.wait()
        process.wait()
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        await asyncio.wait_for(_ended(process), _PATIENCE)
    except TimeoutError:
        process.kill()
        await _ended(process)
