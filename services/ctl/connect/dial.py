"""Services on nodes without open ports: a command, such as `ssh h1 sudo`, carries each connection (ADR 44).

The far side runs `flannelette dial-stdio SERVICE`, and once `dial-stdio networks`, which lists those that have
sockets. Here gRPC connects to a unix socket in a directory that only this user may enter; each connection to it is
one run of the command, which has the connection as its standard input and output.
"""

import atexit
import os
import shlex
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from typing import Final

MISSING: Final = 3
"""The exit code of dial-stdio where there is no socket: the service does not run on that node, or has stopped."""
_LAST_WORDS: Final = 5.0
"""Seconds from the end of a connection until the command that carried it has ended, and said why."""
_OURS: Final = "flannelette: "
_CHUNK: Final = 1 << 16
_LIST_SECONDS: Final = 20.0
_number = count()


class Dialer:
    """A unix socket here that is connected by a command to a service's socket elsewhere."""

    def __init__(self, words: Sequence[str], options: Sequence[str], service: str) -> None:
        self.words = tuple(words)
        """What the user wrote: the first words of the command."""
        self.via = shlex.join(words)
        self.options = tuple(options)
        """Options of `flannelette` there: where the service is, and which network it is asked about."""
        self._service = service
        self.path = _directory() / f"{next(_number)}.sock"
        self._said = ""
        self._code = 0
        self._about: dict[str, Dialer] = {}
        self._networks: list[str] | None = None
        self._last_run: threading.Thread | None = None
        self._starting = threading.Lock()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def failure(self) -> str:
        """Why the last run of the command ended, in one line; empty: it has not failed."""
        with self._starting:
            last_run = self._last_run
        if last_run is not None:
            last_run.join(_LAST_WORDS)
        if not self._code:
            return ""
        return f"`{self.via}`: {self._said or f'exit code {self._code}'}"

    def about(self, network: str) -> "Dialer":
        """One to the service of this network there."""
        if network not in self._about:
            self._about[network] = Dialer(self.words, [f"--network={network}", *self.options], self._service)
        return self._about[network]

    def networks(self) -> list[str]:
        """Networks that have sockets of their own there, as the far side says; none where it does not answer, or is
        of a release that does not know the question.
        """
        if self._networks is None:
            command = [*self.words, "flannelette", *self.options, "dial-stdio", "networks"]
            with suppress(OSError, subprocess.SubprocessError):
                done = subprocess.run(
                    command,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=True,
                    timeout=_LIST_SECONDS,
                    env=environment_there(),
                )
                self._networks = done.stdout.decode(errors="replace").split()
        return self._networks or []

    @property
    def is_missing(self) -> bool:
        """Whether the far side has no socket of the service."""
        return self._code == MISSING

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            run = threading.Thread(target=self._run, args=(connection,), daemon=True)
            with self._starting:  # `failure` waits for the end of one that has started
                run.start()
                self._last_run = run

    def _run(self, connection: socket.socket) -> None:
        command = [*self.words, "flannelette", *self.options, "dial-stdio", self._service]
        with connection:
            try:
                end = connection.fileno()
                process = subprocess.Popen(
                    command, stdin=end, stdout=end, stderr=subprocess.PIPE, env=environment_there()
                )
            except OSError as error:
                self._said, self._code = f"cannot run {command[0]}: {error.strerror}", 127
                return
        _, said = process.communicate()
        self._said, self._code = _reason(said.decode(errors="replace")), process.returncode


def dialer(via: str, node: str, options: Sequence[str], service: str) -> Dialer:
    """One for the command `via`, in which `{node}` is the node's name."""
    return Dialer([word.replace("{node}", node) for word in shlex.split(via)], options, service)


def carry(path: Path) -> None:
    """Copies standard input to a unix socket and its answers to standard output, until the service has ended them."""
    with socket.socket(socket.AF_UNIX) as service:
        service.connect(str(path))
        threading.Thread(target=_send, args=(service,), daemon=True).start()
        with suppress(BrokenPipeError, ConnectionResetError):
            while chunk := service.recv(_CHUNK):
                while chunk:
                    chunk = chunk[os.write(1, chunk) :]


def _send(service: socket.socket) -> None:
    with suppress(OSError):  # the service ended first
        while chunk := os.read(0, _CHUNK):
            service.sendall(chunk)
        service.shutdown(socket.SHUT_WR)


def environment_there() -> dict[str, str]:
    """Returns the environment without what names a context or addresses: a command that stays on this host would dial
    itself.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("FLANNELETTE_")}


def _reason(said: str) -> str:
    """Returns the reason that our program on the other side gave, if it was started; else the last line of the
    command's.
    """
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    ours = [line.removeprefix(_OURS) for line in lines if line.startswith(_OURS)]
    return (ours or lines or [""])[-1]


@cache
def _directory() -> Path:
    path = Path(tempfile.mkdtemp(prefix="flannelette-"))  # mode 0700
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
