"""Processes of the host, by what /proc shows: who has a UDP port, who runs a program; and what this process may ask
of the kernel and the C library for itself.

In a container without the host's PID namespace only its own processes are seen. This process ends with its parent,
however that ends, without a fork in Python, which gRPC may abort (#43055). Of memory it asks how much it may have,
and how much of what it has freed the C library keeps.
"""

import asyncio
import ctypes
import os
import re
import shlex
import signal
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from flannelette.services.core.frozen import frozen

_PROC: Final = Path("/proc")
_NAME: Final = r"[\w:.@\\-]+"
_UNIT: Final = re.compile(
    rf"^\d+:[^:]*:/(?:\.\./)*(?:(?!user\.slice/){_NAME}\.slice/)*({_NAME}\.service)(?:/|$)", re.ASCII | re.MULTILINE
)
"""A service of the system. Below user.slice, or in a container, a cgroup may have any name."""
_EFFECTIVE_USER: Final = re.compile(r"^Uid:\t\d+\t(\d+)", re.MULTILINE)
_LOCAL, _INODE = 1, 9
"""Columns of /proc/net/udp: local address, inode."""


@frozen
class Process:
    """A process that runs."""

    pid: int
    name: str
    unit: str = ""
    """systemd's, if it is a service of the host."""
    words: tuple[str, ...] = ()
    """Command line of the process."""

    def __str__(self) -> str:
        return f"{self.name} ({f'{self.unit}, ' if self.unit else ''}process {self.pid})"

    @property
    def end(self) -> str:
        """The command that ends it for good, as far as that is known."""
        return f"systemctl disable --now {shlex.quote(self.unit)}" if self.unit else f"kill {self.pid}"


async def udp_port_is_taken(port: int) -> str:
    """A sentence without its period, with the command that helps after `; cure: `."""
    owner = await asyncio.to_thread(udp_port_owner, port)  # a host may have 100,000 open files: a second
    if owner is None:
        return f"UDP port {port} is taken: `ss -lunp` says by whom; end that program"
    return f"UDP port {port} is taken by {owner}; cure: {owner.end}"


def udp_port_owner(port: int) -> Process | None:
    """The process that has it in this network namespace; None: it is the kernel, or is not seen."""
    return next(iter(owners(int(inode) for name in ("udp", "udp6") for inode in _inodes(name, port)).values()), None)


def owners(inodes: Iterable[int]) -> dict[int, Process]:
    """The processes that are seen to have sockets of these inodes open, one for each socket."""
    wanted = {f"socket:[{inode}]": inode for inode in inodes}
    found = dict[int, Process]()
    for path in _running() if wanted else ():
        try:
            for inode in {wanted[link] for each in (path / "fd").iterdir() if (link := _link(each)) in wanted}:
                found.setdefault(inode, _process(path))
        except OSError:  # it has ended, or is not ours to look into
            continue
        if len(found) == len(wanted):
            break
    return found


def processes(name: str) -> Iterator[Process]:
    """Yields the processes of this name in this network namespace, and of this process's user: another user's cannot
    change what this one has there, and may call itself anything.
    """
    here, wanted = _link(_PROC / "thread-self" / "ns" / "net"), f"{name}\n".encode()
    user = _user(_PROC / "thread-self")
    for path in _running():
        try:
            if (path / "comm").read_bytes() == wanted and _link(path / "ns" / "net") == here and _user(path) == user:
                yield _process(path)
        except OSError:  # it has ended
            continue


def _running() -> Iterator[Path]:
    with suppress(OSError):  # no descriptor is left
        yield from (path for path in list(_PROC.iterdir()) if path.name.isdecimal())


def _process(path: Path) -> Process:
    """Raises OSError. What a process calls itself may be any bytes."""
    texts = ((path / each).read_bytes().decode(errors="replace") for each in ("comm", "cmdline", "cgroup"))
    name, words, groups = texts
    return Process(int(path.name), name.rstrip("\n"), unit_in(groups), tuple(words.rstrip("\0").split("\0")))


def _user(path: Path) -> str:
    """The effective user ID of a process; the owner of its files in /proc may be another. Raises OSError."""
    found = _EFFECTIVE_USER.search((path / "status").read_bytes().decode(errors="replace"))
    return found[1] if found else ""


def unit_in(groups: str) -> str:
    """The system's service in the text of a /proc/PID/cgroup; empty: it is none."""
    found = _UNIT.search(groups)
    return found[1] if found else ""


def _inodes(name: str, port: int) -> Iterator[str]:
    try:
        _, *rows = (_PROC / "thread-self" / "net" / name).read_text().splitlines()
    except (OSError, ValueError):
        return
    for columns in map(str.split, rows):
        if int(columns[_LOCAL].rpartition(":")[2], 16) == port and columns[_INODE] != "0":
            yield columns[_INODE]


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


_PR_SET_PDEATHSIG: Final = 1
_PARENT_VARIABLE: Final = "FLANNELETTE_PARENT"


def with_parent() -> dict[str, str]:
    """What this process adds to the environment of a child that is to end with it."""
    return {_PARENT_VARIABLE: str(os.getpid())}


def end_with_parent() -> None:
    """If the parent asks for it: the kernel sends SIGTERM when that ends (prctl(2)); at once, if it has ended."""
    if parent := os.environ.pop(_PARENT_VARIABLE, ""):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if parent != str(os.getppid()):
            os.kill(os.getpid(), signal.SIGTERM)


_ARENA_MAX: Final = -8
_ARENAS: Final = 2
_CGROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")


def limit_arenas() -> None:
    """Lets glibc have two arenas, not eight for each processor: what one thread has freed another then uses again.

    To be called before there are threads. No other C library needs it.
    """
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_ARENA_MAX, _ARENAS)


def give_back_memory() -> None:
    """Gives what was freed back to the kernel, after something unusual: it takes milliseconds."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def memory_limit() -> int:
    """The smallest limit in bytes of the cgroups of this process, or the memory of the machine."""
    found = list(_memory_limits())
    with suppress(OSError):
        found.append(int(Path("/proc/meminfo").read_text().split(maxsplit=2)[1]) << 10)
    return min(found, default=1 << 40)


def _memory_limits() -> Iterator[int]:
    """A container sees its own cgroup as the root; a service of systemd sees those above it too."""
    lines = _OWN.read_text().splitlines() if _OWN.exists() else []
    for _, kinds, path in (line.split(":", 2) for line in lines):
        if kinds and "memory" not in kinds.split(","):
            continue
        root, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if kinds else (_CGROUPS, "memory.max")
        place = root / path.strip("/")
        for each in (place, *place.parents):
            with suppress(OSError, ValueError):
                yield int((each / name).read_text())
            if each == root:
                break
