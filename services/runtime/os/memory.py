"""The memory of this process: how much it may have, and how much of what it has freed the C library keeps."""

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

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


def give_back() -> None:
    """Gives what was freed back to the kernel, after something unusual: it takes milliseconds."""
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def limit() -> int:
    """The smallest limit in bytes of the cgroups of this process, or the memory of the machine."""
    found = list(_limits())
    with suppress(OSError):
        found.append(int(Path("/proc/meminfo").read_text().split(maxsplit=2)[1]) << 10)
    return min(found, default=1 << 40)


def _limits() -> Iterator[int]:
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
