"""Descriptors, threads and memory of the services, and what has grown while one process ran."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.supervise import Supervised

WARM: Final = 15.0
"""Seconds after which a process has all that it needs."""
MOST_DESCRIPTORS: Final = 8
MOST_THREADS: Final = 8
MOST_MIB: Final = 24


@dataclass(frozen=True, slots=True)
class Sample:
    """What a process has."""

    at: float
    descriptors: int
    threads: int
    mib: float


@dataclass(frozen=True, slots=True)
class Growth:
    """From the first look at a warm process to the last one."""

    title: str
    seconds: float
    descriptors: int
    threads: int
    mib: float

    def excess(self, left: int) -> Iterator[str]:
        """What is more than may be, in words; `left`: MiB that the faults may have left behind."""
        for name, found, most in (
            ("descriptors", self.descriptors, MOST_DESCRIPTORS),
            ("threads", self.threads, MOST_THREADS),
            ("MiB of memory", self.mib, MOST_MIB + left),
        ):
            if found > most:
                yield f"the {self.title} has {found:.0f} {name} more after {self.seconds:.0f} s; {most} may be"


class Growths:
    """Of every process that has run long enough to be looked at twice."""

    def __init__(self) -> None:
        self._born: dict[int, float] = {}
        self._first: dict[int, Sample] = {}
        self._found: dict[int, Growth] = {}

    def look(self, services: list[Supervised], now: float) -> None:
        """Takes a sample of each, at a moment in which nothing is wrong."""
        for service in services:
            pid = service.pid
            with suppress(OSError):
                sample = _sample(pid, now)
                if now - self._born.setdefault(pid, now) < WARM:
                    continue
                first = self._first.setdefault(pid, sample)
                self._found[pid] = Growth(
                    service.program.title,
                    now - first.at,
                    sample.descriptors - first.descriptors,
                    sample.threads - first.threads,
                    sample.mib - first.mib,
                )

    @property
    def all(self) -> list[Growth]:
        """Those found, also of processes that have ended since."""
        return list(self._found.values())


def _sample(pid: int, now: float) -> Sample:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Sample(now, descriptors, int(status["Threads"]), int(status["RssAnon"].split()[0]) / 1024)
