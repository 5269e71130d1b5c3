"""Processes that tests have started, with their logs: a test that waits in vain shows how each of them ends."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

_LINES = 20
_started: dict[Path, "subprocess.Popen[bytes]"] = {}
"""By the log; a process that is started again with the log of an earlier one takes its place."""


def started(command: Sequence[str], log: Path, **options: Any) -> "subprocess.Popen[bytes]":
    """Starts a process that appends what it says to this log. Options are those of Popen."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, **options)
    _started.pop(log, None)
    _started[log] = process
    return process


def forget_ended() -> None:
    """Forgets those that have ended, before another test begins: what it shares with earlier ones still runs."""
    for log in [log for log, process in _started.items() if process.poll() is not None]:
        del _started[log]


def tails() -> Iterator[str]:
    """The last lines of each log, headed by its path and what became of the process."""
    for log, process in _started.items():
        code = process.poll()
        state = f"process {process.pid}" if code is None else f"ended with code {code}"
        lines = log.read_text(errors="replace").splitlines() if log.exists() else ["(the file is gone)"]
        yield "\n".join([f"--- {log}, {state}:", *lines[-_LINES:]])
