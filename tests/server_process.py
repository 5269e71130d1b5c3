"""A server of others as a process: started with its log in a file, waited for until it answers, killed and frozen."""

import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from tests import process_logs
from tests.patience import PATIENCE, pauses


@dataclass
class ServerProcess(ABC):
    """What etcd and kube-apiserver have in common; data survive kill() and a new start."""

    directory: Path
    process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    program: ClassVar[str]

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log_file.read_text(errors="replace")

    def run(self, command: Sequence[str]) -> None:
        """Starts it."""
        self.process = process_logs.started(command, self._log_file)

    def wait(self) -> None:
        """Waits until it answers."""
        assert self.process is not None
        deadline, pause = time.monotonic() + PATIENCE, pauses()
        while not self.answers():
            assert self.process.poll() is None, f"{self.program} ended by itself:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"{self.program} does not answer:\n{self.log[-4000:]}"
            time.sleep(next(pause))

    @abstractmethod
    def answers(self) -> bool:
        """Whether it does, now."""

    def kill(self) -> None:
        """As a power cut."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        """It keeps its connections and does nothing."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    @property
    def _log_file(self) -> Path:
        return self.directory / f"{self.program}.log"
