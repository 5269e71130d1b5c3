"""The imports of a process: all other clusters beside the own one."""

import asyncio
from collections.abc import Iterator, Sequence

from services.core.finding import Finding
from services.lease.events.journal import EventKind
from services.lease.imports.cluster import ImportedCluster
from services.lease.imports.foreign import Foreign
from services.lease.watch.broker import Broker
from services.runtime.events.journal import Subject
from services.runtime.telemetry.logs import get_logger

log = get_logger()


class Imports:
    """The clusters of a process; usually none."""

    def __init__(self, clusters: Sequence[ImportedCluster], broker: Broker) -> None:
        self.clusters = clusters
        self._journal = broker.journal
        if clusters:
            broker.foreign = Foreign([each.leases for each in clusters], self._tell_refusal)

    @property
    def held(self) -> list[str]:
        """Names of the leases whose removal is held back."""
        return [f"{each.name}/{name}" for each in self.clusters for name in each.guard.held]

    @property
    def held_reason(self) -> str:
        """What they wait for; empty when none is held."""
        return "; ".join(each.held_reason for each in self.clusters if each.guard.held)

    async def run(self) -> None:
        """For ever."""
        async with asyncio.TaskGroup() as group:
            for cluster in self.clusters:
                group.create_task(cluster.run(), name=f"import {cluster.name}")

    def confirm(self) -> list[str]:
        """An operator says that what is held back may go; returns the names."""
        return [name for each in self.clusters for name in each.confirm()]

    def findings(self) -> Iterator[Finding]:
        """Of all."""
        return (finding for cluster in self.clusters for finding in cluster.findings())

    def _tell_refusal(self, name: str, reason: str) -> None:
        log.warning("what another cluster shows is not imported", name=name, reason=reason)
        self._journal.note_one(EventKind.IMPORT, Subject(name), lambda: (f"not imported: {name}", reason))

    async def close(self) -> None:
        """Ends the streams."""
        for cluster in self.clusters:
            await cluster.close()
