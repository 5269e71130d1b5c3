"""Processes of the host, by what /proc shows: who has a UDP port, who runs a program. Changes nothing.

In a container without the host's PID namespace only its own processes are seen.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_PROC: Final = Path("/proc")
_UNIT: Final = re.compile(r"/([^/]+\.service)$", re.MULTILINE)
_SOCKET: Final = re.compile(r"socket:\[(\d+)\]")
_LOCAL, _INODE = 1, 9
"""Columns of /proc/net/udp."""


@dataclass(frozen=True, slots=True)
class Process:
    """A process that runs."""

    pid: int
    name: str
    unit: str = ""
    """systemd's, if it is a service of the host."""
    words: tuple[str, ...] = ()
    """Its command line."""

    def __str__(self) -> str:
        return f"{self.name} ({f'{self.unit}, ' if self.unit else ''}process {self.pid})"

    @property
    def end(self) -> str:
        """The command that ends it for good, as far as that is known."""
        return f"systemctl disable --now {self.unit}" if self.unit else f"kill {self.pid}"


def udp_port_is_taken(port: int) -> str:
    """A sentence without its period, with the command that helps behind `; cure: `."""
    owner = udp_port_owner(port)
    if owner is None:
        return f"UDP port {port} is taken: `ss -lunp` says by whom; end that program"
    return f"UDP port {port} is taken by {owner}; cure: {owner.end}"


def udp_port_owner(port: int) -> Process | None:
    """The process that has it in this network namespace; None: it is the kernel, or is not seen."""
    inodes = {inode for name in ("udp", "udp6") for inode in _inodes(name, port)}
    paths = (path for path in _PROC.iterdir() if path.name.isdecimal() and inodes & _sockets(path))
    try:
        return next(map(_process, paths), None) if inodes else None
    except OSError:  # it has ended
        return None


def processes(name: str) -> Iterator[Process]:
    """Those of this name in this network namespace."""
    here = _link(_PROC / "thread-self" / "ns" / "net")
    for path in _PROC.iterdir():
        try:
            if not path.name.isdecimal() or (path / "comm").read_text().rstrip("\n") != name:
                continue
            if _link(path / "ns" / "net") == here:
                yield _process(path)
        except OSError:  # it has ended
            continue


def _process(path: Path) -> Process:
    words = (path / "cmdline").read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
    unit = _UNIT.search((path / "cgroup").read_text())
    return Process(int(path.name), (path / "comm").read_text().rstrip("\n"), unit[1] if unit else "", tuple(words))


def _inodes(name: str, port: int) -> Iterator[str]:
    try:
        _, *rows = (_PROC / "thread-self" / "net" / name).read_text().splitlines()
    except (OSError, ValueError):
        return
    for columns in map(str.split, rows):
        if int(columns[_LOCAL].rpartition(":")[2], 16) == port and columns[_INODE] != "0":
            yield columns[_INODE]


def _sockets(path: Path) -> set[str]:
    found = set[str]()
    try:
        for each in (path / "fd").iterdir():
            match = _SOCKET.fullmatch(_link(each))
            found |= {match[1]} if match else set()
    except OSError:
        pass
    return found


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""
