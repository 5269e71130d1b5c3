"""A look every so often, in a thread of its own: an event loop that wakes to find nothing costs four times that."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import TIMEOUT_MAX, Lock, Thread

Look = Callable[[], bool]
"""Whether there is something to be done. Called in another thread; any failure counts as yes."""


@contextmanager
def sentry(look: Look, seconds: float, tell: Callable[[], None]) -> Iterator[None]:
    """Looks every `seconds` while the block runs, until it has something to tell: once, in the event loop.

    The first look is `seconds` away. None runs any more when the block has ended.
    """
    loop, relieved = asyncio.get_running_loop(), Lock()
    relieved.acquire()

    def watch() -> None:
        while not relieved.acquire(timeout=min(seconds, TIMEOUT_MAX)):
            if _is_something(look):
                loop.call_soon_threadsafe(tell)
                return

    thread = Thread(target=watch, name="sentry", daemon=True)
    thread.start()
    try:
        yield
    finally:
        relieved.release()
        thread.join()


def _is_something(look: Look) -> bool:
    try:
        return look()
    except Exception:  # the check that follows meets it again, and has somebody to tell
        return True
