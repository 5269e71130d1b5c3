"""gRPC's clock, measured before its threads become slow."""

import errno
import subprocess
import sys
from typing import Final, NoReturn

import pytest

from services.runtime import grpc_clock

_PROGRAM: Final = """
import asyncio
import threading
from pathlib import Path

import grpc.aio

from services.runtime import grpc_clock
from services.runtime.slack import timer_slack


def slacks():
    return {Path("/proc", task.name, "timerslack_ns").read_text().strip() for task in others()}


def others():
    return [task for task in Path("/proc/self/task").iterdir() if task.name != str(threading.get_native_id())]


async def main():
    await grpc_clock.measure()
    print(len(others()))
    with timer_slack(8.0):
        channel = grpc.aio.insecure_channel("unix:/dev/null/nowhere")
    print(*slacks())
    state = channel.get_state(try_to_connect=True)
    while state is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
        await asyncio.wait_for(channel.wait_for_state_change(state), 8.0)  # two sleeps of this slack take 16 s
        state = channel.get_state()
    await channel.close()


asyncio.run(main())
"""


def test_a_first_attempt_to_connect_does_not_wait_for_the_slack_of_threads_started_later() -> None:
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout.splitlines()) == (0, ["0", "8000000000"]), run.stderr


async def test_a_process_that_may_open_no_more_files_starts_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(grpc_clock, "_threads", refuse)
    await grpc_clock.measure()
