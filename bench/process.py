"""Processes of a bench, and what they cost."""

import asyncio
import compileall
import subprocess
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

import flannelette
from bench.result import BenchFailed

_MIB: Final = 1024
_LOOK: Final = 0.1
"""Seconds between two looks whether a process still runs."""
_Result = TypeVar("_Result")


def compile_sources() -> None:
    """Bytecode for what the processes import from here: a service that is installed has it, from pip."""
    for place in flannelette.__path__:
        for part in (place, Path(place, "services").resolve()):  # in a checkout a link, which compileall leaves
            compileall.compile_dir(part, quiet=2)


@contextmanager
def running(*command: str, log: Path | None = None) -> "Iterator[subprocess.Popen[bytes]]":
    """A process, in the namespace of the calling thread, until the block ends. `log` gets what it prints."""
    with (log or Path("/dev/null")).open("wb") as file:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def unless_failed(
    work: Coroutine[None, None, _Result], processes: "Mapping[Path, subprocess.Popen[bytes]]"
) -> _Result:
    """The result of work that waits for processes, which are given by their logs.

    Raises BenchFailed with the last words of a process as soon as that has failed.
    """
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait([task], timeout=_LOOK))[0]:
            for log, process in processes.items():
                if process.poll():
                    words = log.read_text(errors="replace")[-600:].strip()
                    raise BenchFailed(f"{process.args!r} ended with {process.returncode}: {words}")
        return await task
    finally:
        task.cancel()


def cpu_seconds(process: "subprocess.Popen[bytes]") -> float:
    """Returns the CPU seconds of all its threads, as the scheduler counts them: in nanoseconds, not in ticks. Raises
    BenchFailed.
    """
    _require(process)
    nanoseconds = 0
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(OSError):  # the thread has ended meanwhile
            nanoseconds += int((task / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def resident_mib(process: "subprocess.Popen[bytes]", what: str = "VmRSS") -> float:
    """What it has in memory now; with VmHWM, the most that it ever had. Raises BenchFailed."""
    _require(process)
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == what:
            return int(value.split()[0]) / _MIB
    raise BenchFailed(f"{process.args!r} has no {what}")


def children(process: "subprocess.Popen[bytes]") -> list[int]:
    """The ids of the processes that it has started and that are still there. Raises BenchFailed."""
    _require(process)
    tasks = Path(f"/proc/{process.pid}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def _require(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is not None:
        raise BenchFailed(f"{process.args!r} ended by itself")
