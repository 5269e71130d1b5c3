"""A lock for work that must run to its end even when its caller is cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Exclusive(asyncio.Lock):
    """The lock of a state that one task at a time reads or changes."""

    _task: "asyncio.Task[Any] | None" = None
    """The running work; the event loop holds only a weak reference to it."""

    async def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Runs the work with the lock held; returns its result or raises its error.

        Work that has begun continues to its end when the caller is cancelled or out of time, so that nothing is left
        half done. Work that has not begun by then never does. Call `end` before the process frees what the work
        needs.
        """
        await self.acquire()
        self._task = task = asyncio.create_task(work())
        task.add_done_callback(self._end)
        return await asyncio.shield(task)

    async def end(self, seconds: float) -> bool:
        """Whether the running work ends within so many seconds; then the lock is held for good.

        If not, a task that waits for the lock gets it when the work ends, unless it is cancelled.
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
            task.exception()  # marks the error as retrieved: a caller that is gone does not ask for it
