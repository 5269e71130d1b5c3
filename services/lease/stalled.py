"""Ends streams whose client takes nothing any more: a frozen process on a unix socket may never fail a ping.

gRPC's ping waits behind what is already in the socket's buffer. Where that is full, the ping is never sent and so
never fails; what tells is a message that does not get away.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Final

SECONDS: Final = 28.0
"""As long as a client of which nothing is wanted has to answer a ping."""


class Stalled:
    """Watches streams; `run` ends those that have waited too long with one message."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._since: dict[asyncio.Task[object], float] = {}
        """When each stream that waits began to."""

    async def watched(self, messages: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
        """The same messages. The task that sends them is cancelled when one does not get away."""
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None  # noqa: S101 - only a task can ask for a message
        async with aclosing(messages):
            async for message in messages:
                self._since[task] = loop.time()
                try:
                    yield message
                finally:
                    del self._since[task]

    async def run(self) -> None:
        """For ever. Costs nothing while every message gets away."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self._seconds / 4)
            oldest = loop.time() - self._seconds
            for task, since in list(self._since.items()):
                if since < oldest:
                    task.cancel()
