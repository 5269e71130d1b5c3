"""The imports of a lease service: each other cluster whose leases it follows."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from flannelette.services.core.conditions import Condition
from flannelette.services.core.limits import MOST_LEASES
from flannelette.services.lease.events.journal import EventKind
from flannelette.services.lease.imports.cluster import ImportedCluster
from flannelette.services.lease.imports.foreign import Foreign
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.runtime.events import Subject
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger

log = get_logger()


class Imports:
    """The imported clusters of a lease service; usually none."""

    def __init__(self, clusters: Sequence[ImportedCluster], broker: Broker, most: int = MOST_LEASES) -> None:
        self.clusters = clusters
        self._journal = broker.journal
        self._may_log = LogLimiter()
        if clusters:
            broker.foreign = Foreign([each.leases for each in clusters], self._tell_refusals, most)

    @property
    def held(self) -> list[str]:
        """Names of the leases whose removal is held back."""
        return [f"{each.name}/{name}" for each in self.clusters for name in each.guard.held]

    @property
    def held_reason(self) -> str:
        """Why removals are held back, a sentence for each cluster; empty when none is."""
        return "; ".join(each.held_reason for each in self.clusters if each.guard.held)

    async def run(self) -> None:
        """Follows all clusters until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for cluster in self.clusters:
                group.create_task(cluster.run(), name=f"import {cluster.name}")

    def confirm(self) -> list[str]:
        """An operator says that what is held back may go; returns the names."""
        return [name for each in self.clusters for name in each.confirm()]

    def findings(self) -> Iterator[Condition]:
        """What an operator must know about any of the imports."""
        return (finding for cluster in self.clusters for finding in cluster.findings())

    def _tell_refusals(self, refused: Mapping[str, str]) -> None:
        for name, reason in refused.items():
            self._journal.note_one(EventKind.IMPORT, Subject(name), partial(_words, name, reason))
        name, reason = min(refused.items())
        if self._may_log(name.partition("/")[0]):  # by cluster: it may show as many as it likes, as often as it likes
            log.warning("what another cluster shows is not imported", name=name, reason=reason, more=len(refused) - 1)

    async def close(self) -> None:
        """Ends the streams, and writes what is not written."""
        for cluster in self.clusters:
            await cluster.close()


def _words(name: str, reason: str) -> tuple[str, str]:
    return f"not imported: {name}", reason
