"""A masq that remembers over a reboot: what it hears, and the rules that follow, in virtual time."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path

from flannelette.services.core.leases.table import Step
from flannelette.services.masq.reconcile.reconciler import InputCache
from flannelette.services.runtime.cache import CachedTable, StateFile
from tests.examples.masq_firewall import ALL, Running
from tests.virtual_time import run_virtually

AWAY = "nobody is there"


class Scene(Running):
    """A host, and the lives of the service on it, whose clock is `later` seconds ahead."""

    def __init__(self, directory: Path, later: float = 0.0) -> None:
        super().__init__()
        self.directory = directory
        self.later = later

    @asynccontextmanager
    async def life(self, allowed: Sequence[str] = ()) -> AsyncIterator["Scene"]:
        """One start of the service, beside no lease service."""
        settings = replace(ALL, allowed=tuple(ip_network(text) for text in allowed))
        with StateFile(str(self.directory), "masq") as file:
            cached = CachedTable("n1", file)
            self.build(settings, earlier_network=cached.network)
            self.cache = InputCache("n1", file, cached, self.reconciler, lambda: time.time() + self.later)
            async with self:
                job = asyncio.create_task(self.cache.run())
                self.cache.update(self.table, AWAY)
                yield self
                job.cancel()
                with suppress(asyncio.CancelledError):
                    await job
                await self.cache.close()

    async def hear(self, *steps: Step, away: str = "") -> None:
        """The lease service tells these steps; `away`: why it cannot be reached then."""
        for step in steps:
            self.table.fold(step)
            self.cache.update(self.table, away)
        await self.settle()

    async def impatient(self) -> None:
        """So much time passes that what is remembered counts."""
        await asyncio.sleep(1.1)
        await self.settle()


def played(story: Callable[[Scene], Awaitable[None]], scene: Scene, *allowed: str) -> None:
    async def play() -> None:
        async with scene.life(allowed):
            await story(scene)

    run_virtually(play())
