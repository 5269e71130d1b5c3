"""The leases of other clusters, each followed through the stream of its lease service; and what those of other
clusters see of this one, serialised (VIEW_EXPORTED).
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.conditions import Condition, found
from flannelette.services.core.errors import Misconfigured
from flannelette.services.core.formats.text import count
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Table, apply, changes_between
from flannelette.services.core.limits import MOST_LEASES
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease import metrics
from flannelette.services.lease.admission import FlapGuard, MassRemovalGuard
from flannelette.services.lease.events import LeaseEventKind, tell_ended, tell_held
from flannelette.services.lease.imports.policy import ClusterLeases, Foreign, Import, mismatch, shown_options
from flannelette.services.lease.stores.store import Changed, Snapshot, TableEvents
from flannelette.services.lease.watch import MOST_CHANGES, NOTHING, Broker
from flannelette.services.runtime.cache import table_of, table_records
from flannelette.services.runtime.events import Event, Subject
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.lease.wire import step_to_bytes
from flannelette.services.runtime.older_state import lease_import
from flannelette.services.runtime.rpc.transport import Transport
from flannelette.services.runtime.state import Named, RecordFile, keep
from flannelette.services.runtime.telemetry.logs import LogLimiter, get_logger
from flannelette.services.runtime.tls import Credentials, TlsFiles, expiry_findings

log = get_logger()

_KIND: Final = "lease.import"
_MOST_SHOWN: Final = 50
_PATIENCE: Final = 5.0
"""Seconds that the other cluster has to answer, before the leases that a file remembers are in force. The file may be
older than what the process before this one has passed on, and nodes keep that meanwhile."""
_PAUSE: Final = 1.0
"""Seconds between two looks at what is held back, and at replaced certificates."""
_PAUSE_PER_LEASE: Final = 0.005
"""Least seconds between two writes for each lease: it takes some µs, so that writes take thousandths of a core."""


class ImportedCluster:
    """Keeps `leases.shown` as the other cluster shows it.

    * Without an answer of the other cluster the leases last received stay, also over a restart: it is awaited
      (`Foreign.awaited`) until it has answered this process, and nodes keep what they have. Nodes that have nothing
      get what a file remembers.
    * Removals go through a guard of its own (ADR 12). What it holds back goes when `guard_seconds` later the other
      cluster still answers, has a network, and has the leases no more.
    """

    def __init__(
        self,
        policy: Import,
        transport: Transport,
        broker: Broker,
        file: Path,
        share: float,
        seconds: float,
        most: int,
    ) -> None:
        self.leases = ClusterLeases(policy)
        self.network: NetworkConfig | None = None
        """The network of the other cluster."""
        self.guard = MassRemovalGuard(share)
        self._flaps = FlapGuard(policy.name)
        self._status = StoreStatus("import", False, f"not connected to {policy.address} yet")
        self._transport = transport
        if policy.files:
            files = TlsFiles(*map(Path, policy.files))
            self._transport = Transport(Credentials(files), policy.server_name, transport.dangerously)
        self._connection = LeaseConnection(policy.address, "", self._transport)
        self._broker = broker
        self.file = RecordFile(file, _KIND, older=lease_import, is_synced=False)
        """The leases of the other cluster."""
        self._seconds = seconds
        self._changed = asyncio.Event()
        self._feed = Feed(self._connection, pb.VIEW_EXPORTED, self._notice, most=most)
        self._events = TableEvents(policy.address)
        self._unsaved = asyncio.Event()
        self._remembered = self._recall()
        metrics.IMPORT_CONNECTED.labels(policy.name).set_function(lambda: self.status.connected)
        metrics.IMPORT_REFUSED.labels(policy.name).set_function(lambda: len(self.leases.refused))

    @property
    def name(self) -> str:
        """The name of the other cluster."""
        return self.leases.policy.name

    @property
    def status(self) -> StoreStatus:
        """Whether the leases follow the other cluster."""
        return self._status

    async def run(self) -> None:
        """Follows the other cluster until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._feed.run())
            group.create_task(self._follow())
            group.create_task(self._look_after())
            group.create_task(self.keep())
            group.create_task(self._use_remembered())

    async def close(self) -> None:
        """Ends the stream, and writes what is not written."""
        await self._connection.close()
        if self._unsaved.is_set():
            await self._write()

    def findings(self) -> Iterator[Condition]:
        """What an operator must know about the import."""
        policy, own = self.leases.policy, self._broker.table.network
        if not self.status.connected:
            number = len(self.leases.in_force)
            remain = "remains" if number == 1 else "remain"
            what = f"the {count(number, 'lease')} last received from it {remain} in force"
            if not self.leases.has_answered:
                what = "nodes keep the leases of this cluster that they have, as it has not answered since the start"
            yield found("import.away", cluster=self.name, effect=what, error=self.status.error)
        if refused := self.leases.refused:
            first = min(refused)
            more = f", and {len(refused) - 1} more" if len(refused) > 1 else ""
            yield found("import.refused", lease=first, cluster=self.name, more=more, reason=refused[first])
        if own and self.network and (reason := mismatch(own, self.network)):
            yield found("import.backend", cluster=self.name, reason=reason)
        yield from self._flaps.findings(asyncio.get_running_loop().time())
        if policy.files and self._transport.credentials:
            yield from expiry_findings(self._transport.credentials, time.time())

    def to_proto(self) -> pb.ImportedCluster:
        """The import as GetStatus answers it."""
        refused = sorted(self.leases.refused.items())
        return pb.ImportedCluster(
            name=self.name,
            address=self.leases.policy.address,
            connected=self.status.connected,
            error=self.status.error,
            leases=len(self.leases.in_force),
            refused=[pb.RefusedImport(name=name, reason=reason) for name, reason in refused[:_MOST_SHOWN]],
            refused_count=len(refused),
            held_removals=len(self.guard.held),
            allowed=map(str, self.leases.policy.allow),
        )

    def take(self, event: Snapshot | Changed, now: float) -> None:
        """What the other cluster shows has changed."""
        if self.leases.has_answered:
            event = self._flaps.take(event, self.leases.shown, now)
        self._show(event, now)

    def _show(self, event: Snapshot | Changed, now: float) -> None:
        shown, held = self.leases.shown, set(self.guard.held)
        event = self.guard.take(event, shown if self.leases.has_answered else self._remembered, now)
        self.network = event.network or self.network
        if isinstance(event, Snapshot):
            names = {*shown, *event.leases}
            self.leases.shown = dict(event.leases)
        else:
            names = {change.name for change in event.changes}
            apply(event.changes, shown)
        self.leases.has_answered, self._remembered = True, {}
        self._tell_held(held)
        self._put(names)

    @property
    def held_reason(self) -> str:
        """What removals wait for, one sentence; empty when none is held back."""
        what = self.guard.kept(f"of cluster {self.name} vanished at once")
        until = f"until it has lacked them for {self._seconds:g} s, unless an operator confirms the removal"
        return f"{what} {until}" if self.guard.held else ""

    def confirm(self) -> list[str]:
        """An operator says that what is held back may go; returns the names here."""
        return self._remove(self.guard.confirm_all(), "an operator has confirmed it")

    def _put(self, names: Iterable[str]) -> None:
        """Passes changes of the leases of these names on to the lease table."""
        self._unsaved.set()
        self._broker.take(Changed(self._broker.foreign.judge(self.leases, names)))

    def _notice(self, touched: frozenset[str]) -> None:
        self._events.touched |= touched
        self._changed.set()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            feed = self._feed
            for event in self._events.events(feed.table, feed.connected, feed.error):
                if not isinstance(event, StoreStatus):
                    self.take(event, asyncio.get_running_loop().time())
                    self._tell_status(StoreStatus("import", True))
                else:
                    self._tell_status(event)

    def _tell_status(self, status: StoreStatus) -> None:
        if (status.connected, status.error) == (self._status.connected, self._status.error):
            return
        was_connected, self._status = self._status.connected, status
        if was_connected != status.connected:
            what = "answers" if status.connected else "is away; the leases last received from it remain in force"
            self._broker.journal.note(Event(LeaseEventKind.IMPORT, f"cluster {self.name} {what}", status.error))

    async def _look_after(self) -> None:
        while True:
            await asyncio.sleep(_PAUSE)
            now = asyncio.get_running_loop().time()
            self._confirm(now)
            if due := self._flaps.pass_due(self.leases.shown, now):
                self._show(Changed(due), now)
            credentials = self._transport.credentials if self.leases.policy.files else None
            if credentials and credentials.files.stamp() != credentials.last_read:
                with suppress(Misconfigured):  # half replaced: the next look finds the rest
                    credentials.replace()

    async def keep(self) -> None:
        """Writes the file whenever what it keeps has changed, until it is cancelled."""
        await keep(self._unsaved.wait, self._write, pause=lambda: _PAUSE_PER_LEASE * len(self.leases.shown))

    async def _write(self) -> bool:
        self._unsaved.clear()
        is_written = await self.file.write_slowly(self._records())
        if not is_written:
            self._unsaved.set()
        return is_written

    def _confirm(self, now: float) -> None:
        """What was held back long enough goes, if the other cluster says again that it is gone."""
        if self.guard.held and self.status.connected and self._feed.table.network:
            removed = self.guard.confirm(self._feed.table.leases, now - self._seconds)
            self._remove(removed, f"cluster {self.name} has confirmed it")

    def _remove(self, removed: Iterable[Removed], why: str) -> list[str]:
        names = [change.name for change in removed]
        if names:
            for name in names:
                self.leases.shown.pop(name, None)
            tell_ended(self._broker.journal, self._here(names), why)
            self._put(names)
        return self._here(names)

    def _tell_held(self, before: set[str]) -> None:
        held, journal = self.guard.held.keys(), self._broker.journal
        if new := held - before:
            log.warning(
                "many leases of another cluster vanished at once; they stay", cluster=self.name, leases=len(new)
            )
            tell_held(journal, self._here(new), f"cluster {self.name} has lost them")
        elif before - held:
            tell_ended(journal, self._here(before - held), f"cluster {self.name} has them again")

    def _here(self, names: Iterable[str]) -> list[str]:
        return [f"{self.name}/{name}" for name in names]

    async def _use_remembered(self) -> None:
        await asyncio.sleep(_PATIENCE)
        if self._remembered:
            self.leases.shown = self._remembered
            self._put(self._remembered)

    def _recall(self) -> dict[str, Lease]:
        """What the process before this one knew."""
        table = table_of(self.file)
        self.network = table.network
        return table.leases

    def _records(self) -> Iterator[Named]:
        return table_records(self.network, list(self.leases.shown.values()), None)


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
            self._journal.note_one(LeaseEventKind.IMPORT, Subject(name), partial(_words, name, reason))
        name, reason = min(refused.items())
        if self._may_log(name.partition("/")[0]):  # by cluster: it may show as many as it likes, as often as it likes
            log.warning("what another cluster shows is not imported", name=name, reason=reason, more=len(refused) - 1)

    async def close(self) -> None:
        """Ends the streams, and writes what is not written."""
        for cluster in self.clusters:
            await cluster.close()


def _words(name: str, reason: str) -> tuple[str, str]:
    return f"not imported: {name}", reason


_EXPORT_PAUSE: Final = 0.05
"""Seconds between two looks at the table, each of which costs a comparison of all leases: 1 ms for 10,000."""


async def watch_exported(broker: Broker, shows: Callable[[Lease], bool]) -> AsyncGenerator[bytes, None]:
    """The leases that are shown, then every change. It starts with a snapshot, and has no cursor.

    Other clusters do not see when a lease expires, nor what the configuration says beside the ranges and the backend.
    """
    shown = Table()
    while True:
        table = broker.table
        if not table.synced:
            step = Step(store=table.store if table.store != shown.store else None)
        else:
            step = _step(table, shown, shows)
        if step == NOTHING:
            await broker.notifier.next()
            await asyncio.sleep(_EXPORT_PAUSE)
            continue
        count = len(step.changes)
        for start in range(0, max(count, 1), MOST_CHANGES):
            part, is_last = step.changes[start : start + MOST_CHANGES], start + MOST_CHANGES >= count
            message = replace(step, changes=part) if start == 0 else Step(changes=part)
            message = replace(message, synced=step.synced and (is_last or not step.reset))
            shown.fold(message)
            yield step_to_bytes(message)


def _step(table: Table, shown: Table, shows: Callable[[Lease], bool]) -> Step:
    """What takes an importer from what it was shown to the table as it is."""
    leases: Mapping[str, Lease] = {
        name: lease if lease.expires_at is None else lease.with_time(None)
        for name, lease in table.leases.items()
        if shows(lease)
    }
    network = exported(table.network) if table.network else None
    step = Step(
        reset=not shown.synced,
        changes=changes_between(shown.leases, leases),
        network=network if network != shown.network else None,
        store=table.store if table.store != shown.store else None,
    )
    return step if step == NOTHING else replace(step, synced=True)


def exported(network: NetworkConfig) -> NetworkConfig:
    """The network as other clusters may see it: without keys, passwords and commands."""
    told: dict[str, Any] = {"EnableIPv4": False}
    for n in network.families:
        prefix = n.family.key_prefix
        told |= {f"Enable{n.family}": True, f"{prefix}Network": str(n.cidr)}
        if n.subnet_length:
            told[f"{prefix}SubnetLen"] = n.subnet_length
    told["Backend"] = {"Type": network.backend_type} | shown_options(network)
    return replace(network, source=json.dumps(told), warnings=(), beside=(), imported=())
