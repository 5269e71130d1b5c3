"""A backend's own task runs while that backend is in force."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from services.core.family import Network
from services.core.leases.lease import Subnet
from services.dataplane.backends.backend import Backend, Host, NodeLinks
from services.dataplane.backends.task import run_backend_task
from services.dataplane.netlink.objects import KernelObject
from services.dataplane.underlay.selection import Underlay
from tests.examples.dataplane import UNDERLAY


@dataclass(frozen=True)
class Busy(Backend):
    name: str
    log: list[str] = field(compare=False)
    lease_type: ClassVar[str] = "busy"

    def peer_objects(
        self, subnets: Sequence[Subnet], own_subnets: Sequence[Network], links: NodeLinks
    ) -> Iterable[KernelObject]:
        return ()

    async def run(self, host: Host) -> None:
        self.log.append(f"{self.name} starts on {host.underlay.name}")
        host.audit()
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append(f"{self.name} ends")


async def test_the_task_of_the_backend_in_force_runs_and_ends_with_it() -> None:
    log: list[str] = []
    script = iter([None, Busy("a", log), Busy("a", log), Busy("b", log)])
    now: list[tuple[Backend, Underlay] | None] = [None]

    async def changed() -> None:
        await asyncio.sleep(0)
        try:
            backend = next(script)
            now[0] = (backend, UNDERLAY) if backend else None
        except StopIteration:
            await asyncio.Event().wait()

    task = asyncio.create_task(
        run_backend_task(lambda: now[0], Path("/run"), changed, lambda: log.append("audit"), lambda _: None)
    )
    for _ in range(20):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert log == ["a starts on eth0", "audit", "a ends", "b starts on eth0", "audit", "b ends"]
