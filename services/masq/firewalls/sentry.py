"""A look every so often, in one thread for all: an event loop that wakes to find nothing costs four times that."""

import asyncio
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from threading import Lock, Thread
from typing import Final

from services.core.errors import Unavailable
from services.masq.firewalls.alarm import Alarm

_MOMENT_SECONDS: Final = 0.0001

Look = Callable[[], bool]
"""Whether there is something to be done. Called in another thread; any failure counts as yes."""


@contextmanager
def sentry(look: Look, seconds: float, tell: Callable[[], None]) -> Iterator[None]:
    """Looks every `seconds` while the block runs, until it has something to tell: once, in the event loop.

    The first look is `seconds` away. Several blocks share wake-ups: a look is too early or too late by up to half of
    the shortest time between two of any block. None runs any more when the block has ended.
    Raises Unavailable, before the block: there is no thread or no descriptor left to look with.
    """
    loop = asyncio.get_running_loop()
    post = _Post(look, seconds, lambda: loop.call_soon_threadsafe(tell), time.monotonic() + seconds)
    _WATCH.take(post)
    try:
        yield
    finally:
        _WATCH.leave(post)


@dataclass(eq=False, slots=True)
class _Post:
    """What a block asked for."""

    look: Look
    seconds: float
    tell: Callable[[], object]
    due: float


class _Watch:
    """Of all posts of the process. Has a thread as long as there are any.

    The thread takes no lock, for a cold one costs it a third of a wake-up: it says that it is looking before it reads
    which posts there are, and who leaves one takes that away first, and waits as long as it is.
    """

    def __init__(self) -> None:
        self._turn = Lock()
        """Whoever has it changes the posts."""
        self._posts: tuple[_Post, ...] = ()
        self._guard: tuple[Alarm, Thread] | None = None
        self._is_looking = False

    def take(self, post: _Post) -> None:
        with self._turn:
            if self._guard:
                self._posts += (post,)
                alarm = self._guard[0]
                alarm.set(self._shortest())
                alarm.ring()  # it sleeps for longer, perhaps
            else:
                self._guard = self._begin(post)

    def leave(self, post: _Post) -> None:
        with self._turn:
            self._posts = tuple(other for other in self._posts if other is not post)
            if self._posts and self._guard:
                self._guard[0].set(self._shortest())
                while self._is_looking:
                    time.sleep(_MOMENT_SECONDS)
            elif self._guard:
                (alarm, thread), self._guard = self._guard, None
                alarm.ring()
                thread.join()
                alarm.close()

    def _begin(self, post: _Post) -> tuple[Alarm, Thread]:
        """With the first one; there is none still if that fails."""
        try:
            alarm = Alarm(post.seconds)
        except OSError as error:
            raise Unavailable(f"the tables cannot be looked at every so often: {error.strerror}") from None
        thread = Thread(target=self._stand, args=(alarm,), name="sentry", daemon=True)
        self._posts = (post,)
        try:
            thread.start()
        except RuntimeError as error:
            self._posts = ()
            alarm.close()
            raise Unavailable(f"the tables cannot be looked at every so often: {error}") from None
        return alarm, thread

    def _shortest(self) -> float:
        return min(post.seconds for post in self._posts)

    def _stand(self, alarm: Alarm) -> None:
        wait = alarm.wait
        while self._posts:
            wait()
            self._is_looking = True
            now = time.monotonic()
            for post in self._posts:
                if post.due <= now + alarm.seconds / 2:
                    post.due = now + post.seconds
                    if _is_something(post.look):
                        post.due = math.inf
                        with suppress(RuntimeError):  # the loop is closed, and nobody waits
                            post.tell()
            self._is_looking = False


_WATCH: Final = _Watch()


def _is_something(look: Look) -> bool:
    try:
        return look()
    except Exception:  # the check that follows meets it again, and has somebody to tell
        return True
