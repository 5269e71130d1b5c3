"""A terminal on which commands are typed, read, and ended by Ctrl-C."""

import os
import pty
import re
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tests.patience import PATIENCE

_CTRL_C = b"\x03"


class Terminal:
    """One with a shell that runs these commands; it is their controlling terminal, as a user's is."""

    def __init__(self, commands: str, place: Path, environment: Mapping[str, str] = os.environ) -> None:
        self.commands = commands
        self._read = b""
        self._ours, theirs = pty.openpty()
        self._process = subprocess.Popen(
            ["setsid", "--ctty", "sh", "-euc", commands],
            cwd=place,
            env={**environment, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self._reader = threading.Thread(target=self._read_all)
        self._reader.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self.exit_code()
        os.close(self._ours)

    @property
    def output(self) -> str:
        """What is on it so far."""
        return self._read.decode(errors="replace").replace("\r\n", "\n")

    def until_printed(self, text: str, seconds: float = PATIENCE) -> None:
        """Returns when it shows the text. AssertionError: the commands end before, or take too long."""
        self.until_matching(re.compile(re.escape(text)), seconds)

    def until_matching(self, text: re.Pattern[str], seconds: float = PATIENCE) -> None:
        """The same of a text that is like this."""
        end = time.monotonic() + seconds
        while not text.search(self.output):
            has_ended = self._process.poll() is not None
            assert not has_ended or text.search(self.output), f"{self.commands} has ended:\n{self.output}"
            assert time.monotonic() < end, f"{self.commands} has not printed {text.pattern!r}:\n{self.output}"
            time.sleep(0.05)

    def exit_code(self, seconds: float = PATIENCE) -> int:
        """Waits for the end, and for all that was printed."""
        code = self._process.wait(seconds)
        self._reader.join(seconds)
        return code

    def interrupt(self, seconds: float = PATIENCE) -> int:
        """Ctrl-C; the exit code."""
        os.write(self._ours, _CTRL_C)
        return self.exit_code(seconds)

    def _read_all(self) -> None:
        try:
            while chunk := os.read(self._ours, 65536):
                self._read += chunk
        except OSError:  # EIO: nobody has the other side any more
            pass
