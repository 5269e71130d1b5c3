"""The tasks of the backends in force: what a backend has to do beside answering, such as to follow a daemon."""

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

from flannelette.services.dataplane.backends.backend import Backend, Host
from flannelette.services.dataplane.underlay import Underlay

InForce: TypeAlias = tuple[Backend, Underlay]
"""A backend and the underlay that it uses."""


@dataclass(frozen=True, slots=True)
class TaskReports:
    """What the tasks have told."""

    reasons: Mapping[InForce, str] = field(default_factory=dict)
    """Why a backend carries nothing; empty: it does."""
    connected: frozenset[Hashable] = frozenset()
    """See Host."""

    @property
    def working(self) -> frozenset[InForce]:
        """The backends that carry packets, as far as their tasks decide that."""
        return frozenset(each for each, reason in self.reasons.items() if not reason)


async def run_backend_tasks(
    in_force: Callable[[], Sequence[InForce]],
    directory: Path,
    changed: Callable[[], Awaitable[None]],
    audit: Callable[[], None],
    report: Callable[[TaskReports], None],
) -> None:
    """Runs `Backend.run` of each backend in force until cancelled, and cancels it when that, or its underlay, is not
    in force any more.

    `changed` returns after each step of the controller; `report` takes what the backends in force have reported. A
    task that ends by itself is not started again; one that fails ends the service.
    """
    reasons: dict[InForce, str] = {}
    connected: dict[InForce, frozenset[Hashable]] = {}
    tasks: dict[InForce, asyncio.Task[None]] = {}

    def tell(each: InForce, reason: str) -> None:
        if each in in_force():
            reasons[each] = reason
            tell_all()

    def tell_connected(each: InForce, keys: frozenset[Hashable]) -> None:
        if each in in_force():
            connected[each] = keys
            tell_all()

    def tell_all() -> None:
        report(TaskReports(dict(reasons), frozenset().union(*connected.values())))

    async with asyncio.TaskGroup() as group:
        while True:
            now = in_force()
            gone = {each: tasks.pop(each) for each in tasks.keys() - set(now)}
            for task in gone.values():
                task.cancel()
            if gone:
                await asyncio.wait(gone.values())  # the next one may need its port or its device
                for each in gone:
                    reasons.pop(each, None)
                    connected.pop(each, None)
                tell_all()
            for each in now:
                if each not in tasks:
                    host = Host(each[1], directory, audit, partial(tell, each), partial(tell_connected, each))
                    tasks[each] = group.create_task(each[0].run(host))
            await changed()
