"""A backend's own task runs while that backend is in force."""

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Subnet
from flannelette.services.dataplane.backends.backend import Backend, Host, NodeLinks, run_backend_tasks
from flannelette.services.dataplane.netlink.objects import KernelObject
from flannelette.services.dataplane.underlay import Underlay
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


async def log_of(*script: str) -> list[str]:
    """What the backends of these names do, which are in force one step after the other."""
    log: list[str] = []
    steps = iter(script)
    now: list[tuple[Backend, Underlay]] = []

    async def changed() -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        try:
            now[:] = [(Busy(name, log), UNDERLAY) for name in next(steps)]
        except StopIteration:
            await asyncio.Event().wait()

    task = asyncio.create_task(
        run_backend_tasks(lambda: now, Path("/run"), changed, lambda: log.append("audit"), lambda _: None)
    )
    for _ in range(100):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return log


async def test_the_task_of_the_backend_in_force_runs_and_ends_with_it() -> None:
    log = await log_of("", "a", "a", "b")
    assert log == ["a starts on eth0", "audit", "a ends", "b starts on eth0", "audit", "b ends"]


async def test_the_task_of_an_earlier_backend_goes_on_while_that_is_needed() -> None:
    log = await log_of("a", "ba", "b")
    assert log == ["a starts on eth0", "audit", "b starts on eth0", "audit", "a ends", "b ends"]
