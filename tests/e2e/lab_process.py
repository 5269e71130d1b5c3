"""A lab in a process of its own, as a user starts it."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests import process_logs
from tests.paths import ROOT
from tests.patience import PATIENCE

HEEDS_HANG_UP: Final = ("env", "--default-signal=HUP")
"""What nohup ignores is ignored by its children too, and then the lab stays when its terminal goes.

No `preexec_fn`: with it Python forks, and gRPC, which the tests have loaded, may abort the child (grpc/grpc#43055).
"""


class LabProcess:
    """`python -m lab` with its sockets under `home`, which must be a short path."""

    def __init__(self, home: Path, *options: str) -> None:
        self.directory = home / f"flannelette-{os.getuid()}"
        self._output = home / f"output-{time.monotonic_ns()}"
        self._process = process_logs.started(
            [*HEEDS_HANG_UP, sys.executable, "-m", "lab", *options],
            self._output,
            stdin=subprocess.DEVNULL,
            env=os.environ | {"TMPDIR": str(home)},
        )

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    def until_printed(self, text: str) -> None:
        """Returns when it has printed the text. AssertionError: it ended, or takes too long."""
        end = time.monotonic() + 2 * PATIENCE
        while text not in self.output:
            assert self._process.poll() is None, f"the lab ended:\n{self.output}"
            assert time.monotonic() < end, f"the lab has not printed {text!r}:\n{self.output}"
            time.sleep(0.05)

    def carry_out(self, hint: str, changed: Callable[[str], str] = str) -> str:
        """What the command prints that the lab proposes for a second terminal, in the line with this word.

        `changed` makes another command of it, for another host, say.
        """
        _, _, hints = self.output.partition("From a second terminal:")
        export, *lines = hints.split("\n\n")[1].splitlines()
        command = changed(next(line for line in lines if hint in line))
        done = subprocess.run(["sh", "-c", f"{export}\n{command}"], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def inside(self, host: str, *command: str) -> subprocess.CompletedProcess[str]:
        """What a command does in the lab; how it is entered from another terminal."""
        contexts = {"FLANNELETTE_CONTEXTS": str(self.directory / "contexts.toml")}  # other tests have labs, too
        return subprocess.run(
            [sys.executable, "-m", "lab.inside", host, *command],
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | contexts,
        )

    def exit_code(self, number: signal.Signals | None = None) -> int:
        """Sends the signal, if any, and waits for the end."""
        if number:
            self._process.send_signal(number)
        return self._process.wait(10 * PATIENCE)

    def processes(self) -> dict[int, str]:
        """Everything that runs with a path of this lab on its command line."""
        return {
            pid: command for pid, command in _command_lines() if str(self.directory) in command and pid != os.getpid()
        }

    def all_gone(self) -> bool:
        """Whether no process is left, after a moment for the kernel to clear up."""
        end = time.monotonic() + PATIENCE
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        return not self.processes()


def is_installed() -> bool:
    """Whether `make lab` would install nothing."""
    stamp, wanted = ROOT / ".venv/.installed", ROOT / "pyproject.toml"
    return stamp.exists() and stamp.stat().st_mtime >= wanted.stat().st_mtime


@contextmanager
def lab(home: Path, *options: str) -> Iterator[LabProcess]:
    """One that is killed at the end, if it has not ended."""
    process = LabProcess(home, *options)
    try:
        yield process
    finally:
        process.exit_code(signal.SIGKILL)


def _command_lines() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                yield int(entry.name), (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory whose path is short enough for unix sockets, which pytest's own may not be."""
    with tempfile.TemporaryDirectory(prefix="fl-") as path:
        yield Path(path)
