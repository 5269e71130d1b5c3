"""A command on a terminal that a test types into, and whose lines it reads as a person sees them."""

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.ctl.process import environment
from tests.patience import PATIENCE

_ENTERS, _LEAVES = "\x1b[?1049h", "\x1b[?1049l"
_SEQUENCE = re.compile(r"\x1b\[[?\d;]*[A-Za-z]")


class Terminal:
    """What has appeared so far."""

    def __init__(self, master: int, slave: int, process: asyncio.subprocess.Process) -> None:
        self._master = master
        self._slave = slave
        self._before = termios.tcgetattr(slave)
        self._news = asyncio.Event()
        self.process = process
        self.raw = ""

    @property
    def shown(self) -> str:
        """The last picture, without colours; behind the second screen, what is left on the first one."""
        return _SEQUENCE.sub("", re.split(r"\x1b\[H|\x1b\[\?1049[hl]", self.raw)[-1]).replace("\r\n", "\n")

    @property
    def is_as_before(self) -> bool:
        """The first screen, a cursor, and the former modes of the terminal."""
        cursor = self.raw.rfind("\x1b[?25h") >= self.raw.rfind("\x1b[?25l")
        screens = self.raw.count(_ENTERS) == self.raw.count(_LEAVES)
        return screens and cursor and termios.tcgetattr(self._slave) == self._before

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def resize(self, columns: int, height: int) -> None:
        """With the signal that the kernel sends to the processes on the terminal."""
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))

    async def until(self, *words: str) -> str:
        """Waits for a picture that has all of these words, and returns it."""
        try:
            async with asyncio.timeout(PATIENCE):
                while not all(word in self.shown for word in words):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise AssertionError(f"no {words} in:\n{self.shown}") from None
        return self.shown

    async def ended(self) -> int:
        """The exit code, once the process has ended."""
        async with asyncio.timeout(PATIENCE):
            code = await self.process.wait()
        self.read()
        return code

    def read(self) -> None:
        try:
            while chunk := os.read(self._master, 65536):
                self.raw += chunk.decode(errors="replace")
        except OSError:  # nothing there now (EAGAIN), or the other side is closed (EIO)
            pass
        self._news.set()


@asynccontextmanager
async def on_terminal(
    directory: Path, *words: str, columns: int = 80, height: int = 24, **variables: str
) -> AsyncIterator[Terminal]:
    """The running command on a terminal of its own, which is the controlling one, so that Ctrl-C can be typed."""
    master, slave = pty.openpty()
    os.set_blocking(master, False)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, columns, 0, 0))
    process = await asyncio.create_subprocess_exec(
        "setsid",
        "--ctty",
        sys.executable,
        "-m",
        "flannelette.services.ctl.main",
        *words,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(directory, {"TERM": "xterm-256color", **variables}),
    )
    terminal = Terminal(master, slave, process)
    loop = asyncio.get_running_loop()
    loop.add_reader(master, terminal.read)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        loop.remove_reader(master)
        os.close(master)
        os.close(slave)
