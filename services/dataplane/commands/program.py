"""One program: run without a shell, with a limit of time and of output, and never left behind."""

import asyncio
import os
import signal
from asyncio.subprocess import STDOUT, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Self

_MOST_OUTPUT: Final = 64 * 1024
"""Bytes that are kept; the rest is read and thrown away, so that the program does not wait."""
_END_SECONDS: Final = 2.0
"""From SIGTERM to SIGKILL."""
_LINGER_SECONDS: Final = 0.2
"""For output that is still in the pipe when the program has ended: what it left running may hold the pipe open."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a run."""

    error: str
    """Why it failed; empty: exit status 0."""
    output: str = ""
    """stdout and stderr together, without blanks around, as far as it is kept."""
    is_cut: bool = False
    """There was more output."""


async def run_program(argv: Sequence[str], variables: dict[str, str], stdin: str, seconds: float) -> Outcome:
    """Runs a program with our environment and these variables, in a process group of its own, until it ends.

    After so many seconds, and when this is cancelled, the group is ended; what the program itself leaves running in
    the background stays. Never raises but for a cancellation.
    """
    try:
        with os.fdopen(os.memfd_create("stdin"), "wb", 0) as source, _Output() as pipe:
            source.write(stdin.encode(errors="replace"))
            source.seek(0)
            with pipe.sender as stdout:
                process = await asyncio.create_subprocess_exec(
                    *argv,
                    env=os.environ | variables,
                    stdin=source,
                    stdout=stdout,
                    stderr=STDOUT,
                    start_new_session=True,
                )
            status = await _wait(process, seconds)
            await pipe.ended(_LINGER_SECONDS)
    except (OSError, ValueError) as error:  # ValueError: a NUL in a word
        reason = error.strerror if isinstance(error, OSError) else str(error)
        return Outcome(f"cannot run {argv[0]}: {reason}")
    output = pipe.kept.decode(errors="replace").strip()
    return Outcome(_error(status, seconds), output, pipe.is_cut)


async def _wait(process: Process, seconds: float) -> int | None:
    """The exit status; None: it had no end by itself."""
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        _signal(process, signal.SIGTERM)
        with suppress(TimeoutError):
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        return None
    finally:
        if process.returncode is None or process.returncode == -signal.SIGTERM:
            _signal(process, signal.SIGKILL)  # also children of one that has obeyed SIGTERM


def _signal(process: Process, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _error(status: int | None, seconds: float) -> str:
    if status is None:
        return f"ended because it ran longer than {seconds:g} s"
    if status < 0:
        return f"ended by signal {-status}"
    return f"exit status {status}" if status else ""


class _Output:
    """A pipe that is emptied as data come."""

    def __init__(self) -> None:
        self.kept = bytearray()
        self.is_cut = False
        self._descriptor, sender = os.pipe2(os.O_CLOEXEC)
        self.sender = os.fdopen(sender, "wb", 0)
        """The end for the program."""
        self._end = asyncio.Event()
        os.set_blocking(self._descriptor, False)
        asyncio.get_running_loop().add_reader(self._descriptor, self._read)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        self.sender.close()
        os.close(self._descriptor)

    async def ended(self, seconds: float) -> None:
        """Returns once every writer has closed the pipe, and after so many seconds at the latest."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._end.wait()

    def _read(self) -> None:
        with suppress(BlockingIOError):
            data = os.read(self._descriptor, _MOST_OUTPUT)
            if not data:
                self._end.set()
                asyncio.get_running_loop().remove_reader(self._descriptor)
            room = _MOST_OUTPUT - len(self.kept)
            self.kept += data[:room]
            self.is_cut = self.is_cut or len(data) > room
