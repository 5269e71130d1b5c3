"""Waiting for what other processes and tasks do: a value is looked at until it is as it must be.

A wait that takes too long fails with the last value, how long it took, and the end of each started process's log.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Container, Iterator, Sized
from contextlib import contextmanager
from inspect import isawaitable
from pathlib import Path
from pprint import pformat
from typing import Any, Generic, NoReturn, TypeVar, overload

from tests import process_logs
from tests.patience import PATIENCE, pauses

T = TypeVar("T")
_MOST = 4000
"""Characters of a value in the message: its first and its last ones."""


@overload
async def eventually(
    seen: Callable[[], Awaitable[T]], until: Callable[[T], object] = ..., within: float = ...
) -> T: ...
@overload
async def eventually(seen: Callable[[], T], until: Callable[[T], object] = ..., within: float = ...) -> T: ...
async def eventually(seen: Callable[[], Any], until: Callable[[Any], object] = bool, within: float = PATIENCE) -> Any:
    """The value of `seen()`, which may be a coroutine function, as soon as `until` is true of it.

    AssertionError: it has not been within so many seconds. TypeError: it is a plain yes or no, which says nothing.
    An error of `seen()` ends the wait; its note has the same report.
    """
    wait, pause, limit = _Wait(until), pauses(), asyncio.timeout(within)
    try:
        async with limit:
            while True:
                with wait.noting():
                    value = seen()
                    if wait.is_over(await value if isawaitable(value) else value):
                        return wait.last
                await asyncio.sleep(next(pause))
    except TimeoutError:
        if not limit.expired():
            raise
        wait.fail()


def eventually_sync(seen: Callable[[], T], until: Callable[[T], object] = bool, within: float = PATIENCE) -> T:
    """The same for tests without an event loop."""
    wait, pause = _Wait(until), pauses()
    while True:
        with wait.noting():
            if wait.is_over(seen()):
                return wait.last
        if wait.seconds > within:
            wait.fail()
        time.sleep(next(pause))


async def eventually_exists(path: Path, within: float = PATIENCE) -> None:
    """Waits until the path exists; a failure shows what is beside it."""
    await eventually(lambda: sorted(each.name for each in path.parent.glob("*")), contains(path.name), within)


def equals(expected: object) -> Callable[[object], bool]:
    """True of what equals this."""
    return lambda value: value == expected


def contains(*parts: Any) -> Callable[[Container[Any]], bool]:
    """True of what has all of these in it: words of a text, elements of a list, keys."""
    return lambda value: all(part in value for part in parts)


def lacks(*parts: Any) -> Callable[[Container[Any]], bool]:
    """True of what has none of these in it."""
    return lambda value: not any(part in value for part in parts)


def has(count: int) -> Callable[[Sized], bool]:
    """True of what has so many elements."""
    return lambda value: len(value) == count


class _Wait(Generic[T]):
    """One wait: since when, and what was seen last."""

    last: T

    def __init__(self, until: Callable[[T], object]) -> None:
        self._until = until
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """How long it has taken so far."""
        return time.monotonic() - self._begin

    def is_over(self, value: T) -> bool:
        """Whether this is what was waited for."""
        if isinstance(value, bool) and self._until is bool:
            raise TypeError("eventually() takes what returns the thing that is seen, not whether it is there")
        self.last = value
        return bool(self._until(value))

    @contextmanager
    def noting(self) -> Iterator[None]:
        """An error of a look gets the report as a note."""
        try:
            yield
        except Exception as error:
            error.add_note(self.report())
            raise

    def report(self) -> str:
        """How long it took, what was seen last, and what processes have said."""
        seen = shown(self.last) if hasattr(self, "last") else "nothing: the first look did not end"
        return "\n".join([f"not so within {self.seconds:.1f} s. Seen last:", seen, *process_logs.tails()])

    def fail(self) -> NoReturn:
        raise AssertionError(self.report()) from None


def shown(value: object) -> str:
    """The value as a failed test prints it, shortened in the middle."""
    if type(value).__repr__ is object.__repr__ and hasattr(value, "__dict__"):
        text = f"{type(value).__name__} {pformat(vars(value), width=118)}"
    else:
        text = value if isinstance(value, str) else pformat(value, width=118)
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]}\n[...]\n{text[-_MOST // 2 :]}"
