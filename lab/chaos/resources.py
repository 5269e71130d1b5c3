"""Descriptors, threads and memory of the services, and what has grown while one process ran."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from lab.programs import Program

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
    """The growth of a process from the first sample of it, when it was warm, to the last one."""

    service: str
    """Kind of the service, such as `lease`."""
    title: str
    seconds: float
    descriptors: int
    threads: int
    mib: float
    """MiB of memory, without those of `left`."""
    left: float = 0.0
    """MiB that came with the first fault of a kind, as far as its row lets them stay."""

    def excess(self) -> Iterator[str]:
        """What is more than may be, in words."""
        for name, found, most in (
            ("descriptors", self.descriptors, MOST_DESCRIPTORS),
            ("threads", self.threads, MOST_THREADS),
            ("MiB of memory", self.mib, MOST_MIB),
        ):
            if found > most:
                yield f"the {self.title} has {found:.0f} {name} more after {self.seconds:.0f} s; {most} may be"


class Service(Protocol):
    """What has a process."""

    @property
    def program(self) -> Program:
        """The program that the service runs."""

    @property
    def pid(self) -> int:
        """The process id of the service."""


@dataclass
class _Process:
    """One that was looked at."""

    program: Program
    born: float
    """When it was seen first."""
    first: Sample | None = None
    """Figures of the warm process, when it was seen first; None: not yet."""
    last: Sample | None = None
    left: float = 0.0
    faults: set[str] = field(default_factory=set)
    """Faults that may leave memory in it, and have been there while it ran."""

    def suffered(self, faults: Mapping[str, int], mib: float) -> None:
        """Records faults that the process suffered, and its memory after them; each may leave so much there, at its
        first time.
        """
        for name, most in faults.items():
            if name not in self.faults and self.first and self.last:
                before = max(self.last.mib, self.first.mib + self.left)
                self.left += min(max(mib - before, 0.0), most)
        self.faults |= faults.keys()


class Growths:
    """The growth of every process that has run long enough to be sampled twice.

    A heap that was large once stays so, and has room for the same again: what the first fault of a kind leaves in a
    process may be there from then on, and what stays of a second one is growth.
    """

    def __init__(self) -> None:
        self._seen: dict[int, _Process] = {}

    def look(self, services: Iterable[Service], now: float, leaves: Mapping[str, Mapping[str, int]]) -> None:
        """Takes a sample of each, at a moment in which nothing is wrong.

        `leaves` has the faults since the last look, and how many MiB each may leave in which kind of service.
        """
        for service in services:
            with suppress(OSError):  # it has just ended
                sample = _sample(service.pid, now)
                name = service.program.name
                some = {fault: row[name] for fault, row in leaves.items() if name in row}
                process = self._seen.setdefault(service.pid, _Process(service.program, now))
                if now - process.born >= WARM:  # it was there during the faults
                    process.suffered(some, sample.mib)
                    process.first = process.first or sample
                    if not (some and process.last):  # what a fault left has not all been given back yet
                        process.last = sample

    @property
    def all(self) -> list[Growth]:
        """Returns the growth of each process, also of those that have ended since."""
        return [
            Growth(
                process.program.name,
                process.program.title,
                last.at - first.at,
                last.descriptors - first.descriptors,
                last.threads - first.threads,
                last.mib - first.mib - process.left,
                process.left,
            )
            for process in self._seen.values()
            if (first := process.first) and (last := process.last)
        ]


def _sample(pid: int, now: float) -> Sample:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return Sample(now, descriptors, int(status["Threads"]), int(status["RssAnon"].split()[0]) / 1024)
