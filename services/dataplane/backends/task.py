"""The task of the backend in force: what a backend has to do beside answering, such as to follow a daemon."""

import asyncio
from collections.abc import Awaitable, Callable

from services.dataplane.backends.backend import Backend


async def run_backend_task(
    in_force: Callable[[], Backend | None], changed: Callable[[], Awaitable[None]], audit: Callable[[], None]
) -> None:
    """For ever: runs `Backend.run` of the backend in force, and cancels it when another one is.

    `changed` returns after each step of the controller. A task that ends by itself is not started again; one that
    fails ends the service.
    """
    while True:
        backend = in_force()
        async with asyncio.TaskGroup() as group:
            task = group.create_task(backend.run(audit)) if backend is not None else None
            while in_force() == backend:
                await changed()
            if task is not None:
                task.cancel()
