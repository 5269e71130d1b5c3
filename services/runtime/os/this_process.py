"""What this process may ask of the kernel and the C library for itself: to end with its parent, and memory.

It ends with its parent, however that ends, without a fork in Python, which gRPC may abort (#43055). Of memory: how
much it may have, and how much of what it has freed the C library keeps.
"""

import ctypes
import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

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
