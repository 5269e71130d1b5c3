"""A real charon (strongSwan) on a host of a test, with a /run of its own."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lab.charon import PACKAGES, command_in, find_charon, socket_in
from tests import process_logs
from tests.hosts.namespaces import NetworkNamespace
from tests.patience import PATIENCE
from tests.tools import lacking


def require_charon() -> None:
    """Without charon the test is skipped (`lacking`)."""
    if not find_charon():
        lacking(f"there is no charon: apt-get install {' '.join(PACKAGES)}, or `make vm-test`")


class Charon:
    """One process on a host. What another process has put into the kernel stays when it is killed."""

    def __init__(self, host: NetworkNamespace, directory: Path) -> None:
        self._command = host.command(*command_in(directory))
        self.socket = socket_in(directory)
        self.run = self.socket.parent
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def log(self) -> str:
        file = self.run / "output"
        return file.read_text() if file.exists() else ""

    async def start(self) -> None:
        """Returns when it answers."""
        self.socket.unlink(missing_ok=True)
        self._process = self._launch(self._command)
        deadline = time.monotonic() + PATIENCE
        while not self.socket.exists():
            assert self._process.poll() is None, self.log
            assert time.monotonic() < deadline, f"charon does not start:\n{self.log}"
            await asyncio.sleep(0.05)

    def _launch(self, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        return process_logs.started(command, self.run / "output")

    @classmethod
    def kill_flannelds(cls, directory: Path) -> None:
        """That of a flanneld with this directory."""
        file = socket_in(directory).parent / "charon.pid"
        if file.exists():
            with suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)
            file.unlink()

    def kill(self) -> None:
        """SIGKILL: the kernel keeps its tunnels."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
