"""A backend's own task runs while that backend is in force."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from services.core.family import Network
from services.core.leases.lease import Subnet
from services.dataplane.backends.backend import Backend, NodeLinks
from services.dataplane.backends.task import run_backend_task
from services.dataplane.netlink.objects import KernelObject


@dataclass(frozen=True)
class Busy(Backend):
    name: str
    log: list[str] = field(compare=False)
    lease_type: ClassVar[str] = "busy"

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        return ()

    async def run(self, audit: Callable[[], None]) -> None:
        self.log.append(f"{self.name} starts")
        audit()
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append(f"{self.name} ends")


async def test_the_task_of_the_backend_in_force_runs_and_ends_with_it() -> None:
    log: list[str] = []
    script = iter([None, Busy("a", log), Busy("a", log), Busy("b", log)])
    now: list[Backend | None] = [next(script)]

    async def changed() -> None:
        await asyncio.sleep(0)
        try:
            now[0] = next(script)
        except StopIteration:
            await asyncio.Event().wait()

    task = asyncio.create_task(run_backend_task(lambda: now[0], changed, lambda: log.append("audit")))
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert log == ["a starts", "audit", "a ends", "b starts", "audit", "b ends"]
