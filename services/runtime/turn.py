"""Work that takes turns, and is carried out whole."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Turn(asyncio.Lock):
    """Held by whoever reads or changes what must not be changed meanwhile."""

    async def whole(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Does it while nobody else has the turn; returns or raises what it does.

        Work that has begun goes on to its end also when its caller leaves, so that a call that is cancelled or out
        of time leaves nothing half done; what has not begun by then never does. Before a process ends what the work
        needs, it waits for the turn.
        """
        await self.acquire()
        task = asyncio.create_task(work())
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    def _end(self, task: "asyncio.Task[Any]") -> None:
        self.release()
        if not task.cancelled():
            task.exception()  # a caller who left does not ask for it
