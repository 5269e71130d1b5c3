"""Runs the command line as a process: to its end, line by line, or on a terminal."""

import asyncio
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.patience import PATIENCE


@dataclass(frozen=True)
class Ran:
    """What came of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


async def start(
    directory: Path, *words: str, prefix: tuple[str, ...] = (), **variables: str
) -> asyncio.subprocess.Process:
    """The running command, its output in pipes."""
    return await asyncio.create_subprocess_exec(
        *_command(words, prefix),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(directory, variables),
    )


async def run(directory: Path, *words: str, prefix: tuple[str, ...] = (), **variables: str) -> Ran:
    """What came of the command, its output in pipes."""
    process = await start(directory, *words, prefix=prefix, **variables)
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Ran(process.returncode, out.decode(), err.decode())


async def run_on_terminal(directory: Path, *words: str, columns: int, typed: str = "", **variables: str) -> Ran:
    """The same on a terminal of so many columns; `out` is everything that appears on it."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    os.write(ours, typed.encode())
    process = await asyncio.create_subprocess_exec(
        *_command(words, ()),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(directory, {"TERM": "xterm", **variables}),
    )
    os.close(theirs)
    reading = asyncio.get_running_loop().run_in_executor(None, _read_all, ours)
    async with asyncio.timeout(PATIENCE):
        code, out = await process.wait(), await reading
    os.close(ours)
    return Ran(code, out.replace("\r\n", "\n"), "")


def _read_all(descriptor: int) -> str:
    data = b""
    try:
        while chunk := os.read(descriptor, 65536):
            data += chunk
    except OSError:  # EIO: the other side of the terminal is closed
        pass
    return data.decode()


def _command(words: tuple[str, ...], prefix: tuple[str, ...]) -> tuple[str, ...]:
    return (*prefix, sys.executable, "-m", "flannelette.services.ctl.main", *words)


def environment(directory: Path, more: dict[str, str]) -> dict[str, str]:
    """The one that tests run in, without what would change the command, and with what shall."""
    unwanted = ("FLANNELETTE_", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), "FLANNELETTE_SOCKET_DIR": str(directory), **more}
