"""A named network namespace: make it, look into it, run something inside."""

import ctypes
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CLONE_NEWNET: Final = 0x4000_0000
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class NetworkNamespace:
    """One that `ip netns` knows; it lives as long as its name, or as a process or socket in it."""

    name: str

    @property
    def path(self) -> Path:
        """The file that stands for it."""
        return Path("/run/netns", self.name)

    def create(self) -> None:
        """Makes it, with its loopback interface up."""
        _run("ip", "netns", "add", self.name)
        self.ip("link", "set", "lo", "up")

    def delete(self) -> None:
        """Removes the name of the namespace."""
        _run("ip", "netns", "delete", self.name)

    def ip(self, *arguments: str) -> str:
        """What `ip` prints about it. subprocess.CalledProcessError carries its complaint in `stderr`."""
        return _run("ip", "-n", self.name, *arguments)

    def run(self, *command: str) -> str:
        """What a command prints that runs inside. subprocess.CalledProcessError as above."""
        return _run(*self.command(*command))

    def command(self, *command: str) -> tuple[str, ...]:
        """The same command, to run inside; it becomes the command itself, so its process id is the command's."""
        return ("ip", "netns", "exec", self.name, *command)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Puts the calling thread into the namespace, and back. Sockets made meanwhile stay in it."""
        with Path("/proc/thread-self/ns/net").open() as here, self.path.open() as there:
            _set_namespace(there.fileno())
            try:
                yield
            finally:
                _set_namespace(here.fileno())


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, f"setns: {os.strerror(code)}")


def _run(*command: str) -> str:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        error = subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr)
        error.add_note(done.stderr.strip())
        raise error
    return done.stdout
