"""The task of the backend in force: what a backend has to do beside answering, such as to follow a daemon."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.dataplane.backends.backend import Backend, Host
from services.dataplane.underlay.selection import Underlay


async def run_backend_task(
    in_force: Callable[[], tuple[Backend, Underlay] | None],
    directory: Path,
    changed: Callable[[], Awaitable[None]],
    audit: Callable[[], None],
    report: Callable[[str], None],
) -> None:
    """For ever: runs `Backend.run` of the backend in force, and cancels it when another one, or underlay, is.

    `changed` returns after each step of the controller. A task that ends by itself is not started again; one that
    fails ends the service.
    """
    while True:
        found = in_force()
        report("")
        async with asyncio.TaskGroup() as group:
            task = (
                group.create_task(found[0].run(Host(found[1], directory, audit, report)))
                if found is not None
                else None
            )
            while in_force() == found:
                await changed()
            if task is not None:
                task.cancel()
