"""Work that takes turns, and is carried out whole."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Turn(asyncio.Lock):
    """Held by whoever reads or changes what must not be changed meanwhile."""

    _task: "asyncio.Task[Any] | None" = None
    """What has begun: the loop itself knows its tasks but weakly."""

    async def whole(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does it while nobody else has the turn; returns or raises what it does.

        Work that has begun goes on to its end also when its caller leaves, so that a call that is cancelled or out
        of time leaves nothing half done; what has not begun by then never does. Before a process ends what the work
        needs, it calls `end`.
        """
        await self.acquire()
        self._task = task = asyncio.create_task(work())
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    async def end(self, seconds: float) -> bool:
        """Whether what has begun comes to its end within so many seconds.

        Then nothing begins any more. If not, whoever waits for the turn begins when it does end, unless he leaves.
        """
        try:
            async with asyncio.timeout(seconds):
                await self.acquire()
        except TimeoutError:
            return False
        return True

    def _end(self, task: "asyncio.Task[Any]") -> None:
        self._task = None
        self.release()
        if not task.cancelled():
            task.exception()  # a caller who left does not ask for it
