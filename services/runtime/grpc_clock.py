"""Has gRPC's core measure the processor's clock, before its threads may sleep longer than they ask for."""

import asyncio
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

_NOWHERE: Final = "unix:/dev/null/nowhere"
_LONGEST_SECONDS: Final = 1.0
_PAUSE_SECONDS: Final = 0.002


async def measure() -> None:
    """Takes some 10 ms. For a process that has no channel and no server yet: its first one gets threads of its own.

    The core measures once in a process, at the first attempt to connect, by two sleeps of a few milliseconds, for
    which all calls wait. This attempt fails at once, and the threads that it took are gone when this returns. Never
    raises: where that does not come about within a second, or cannot, it goes on without.
    """
    try:
        before = _threads()
        async with asyncio.timeout(_LONGEST_SECONDS):
            await _attempt()
            while not _threads() <= before:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(_PAUSE_SECONDS)
    except OSError:  # that of the timeout among them
        pass


async def _attempt() -> None:
    async with grpc.aio.insecure_channel(_NOWHERE) as channel:
        while (state := channel.get_state(try_to_connect=True)) is not grpc.ChannelConnectivity.TRANSIENT_FAILURE:
            await channel.wait_for_state_change(state)


def _threads() -> frozenset[str]:
    return frozenset(task.name for task in Path("/proc/self/task").iterdir())
