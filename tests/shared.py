"""A scene that tests use in turn, for making one takes longer than what a test does in it.

A test gets it as it was made: one that was changed, or in which a test has failed, is not used again; one that could
not be made is not tried for each test anew. The tests and the fixture have one event loop (`loop_scope="module"`).
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class Shared(Generic[K, T]):
    """The scene of the kind that was asked for last; one at a time, so tests that want one kind follow each other."""

    def __init__(
        self, make: Callable[[K], AbstractAsyncContextManager[T]], state: Callable[[T], Any] = lambda _: None
    ) -> None:
        """`state` is what a test must leave as it was."""
        self._make = make
        self._state = state
        self._kind: K | None = None
        self._failures: dict[K, Exception] = {}
        self._scene: asyncio.Future[tuple[T, Any]] = asyncio.Future()
        self._owner: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    @asynccontextmanager
    async def borrowed(self, kind: K) -> AsyncIterator[T]:
        """A scene of this kind, as it was made. Raises what its making raised, also for those that ask after that."""
        if kind in self._failures:
            raise self._failures[kind]
        if kind != self._kind or self._owner is None or self._owner.done():
            await self.close()
            self._kind, self._scene, self._over = kind, asyncio.Future(), asyncio.Event()
            self._owner = asyncio.create_task(self._own(kind, self._scene, self._over))
        scene, state = await self._scene
        try:
            yield scene
        except BaseException:
            await self.close()
            raise
        if await asyncio.to_thread(self._state, scene) != state:
            await self.close()

    async def close(self) -> None:
        """Ends the scene that there is, if any."""
        owner, self._owner = self._owner, None
        if owner is not None:
            self._over.set()
            await owner

    async def _own(self, kind: K, found: "asyncio.Future[tuple[T, Any]]", over: asyncio.Event) -> None:
        """Makes and ends it in one task, as a task group in it wants it."""
        try:
            async with self._make(kind) as scene:
                found.set_result((scene, await asyncio.to_thread(self._state, scene)))
                await over.wait()
        except Exception as error:
            if found.done():
                raise
            self._failures[kind] = error
            found.set_exception(error)


@asynccontextmanager
async def sharing(
    make: Callable[[K], AbstractAsyncContextManager[T]], state: Callable[[T], Any] = lambda _: None
) -> AsyncIterator[Shared[K, T]]:
    """For a fixture of a module."""
    shared = Shared(make, state)
    try:
        yield shared
    finally:
        await shared.close()
