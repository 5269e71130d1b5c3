"""The store etcd: flannel's keys, compare-and-swap, one watch."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final

import structlog

from services.core.errors import LostRace, NotFound, NotYet, Unavailable
from services.core.lease import Lease, LeaseRequest
from services.core.progress import Progress
from services.core.subnets import Draw
from services.lease.store import Snapshot, StoreEvent
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.configuration import read_configuration
from services.lease.stores.etcd.decision import Decision, decide
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.discarding import discard
from services.lease.stores.etcd.etcd_leases import EtcdLeases
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.listing import read_listing
from services.lease.stores.etcd.members import Timing
from services.lease.stores.etcd.records import EtcdLeaseGone, HistoryLost
from services.lease.stores.etcd.relisting import relist
from services.lease.stores.etcd.settings import EtcdSettings
from services.lease.stores.etcd.table import Entry, Table, read_entry, read_table
from services.lease.stores.etcd.transactions import clearing, extending, giving_back, taking
from services.lease.stores.etcd.watching import KIND, Watcher

log = structlog.get_logger()

_ATTEMPTS: Final = 12
"""Lost races before giving up; with their pauses some three seconds."""
_LONGEST_PAUSE: Final = 1.0
_ORPHANS_AT_ONCE: Final = 20


class EtcdStore:
    """A Store (services.lease.store) in etcd v3.

    Every write is a compare-and-swap decided on a linearizable read; repeated after a lost answer it changes
    nothing more. Construction opens nothing; it raises Misconfigured for files that cannot be used. `node` is the
    node that the process serves, empty if central: etcd sees it in the user agent.
    """

    kind = KIND

    def __init__(
        self,
        settings: EtcdSettings,
        *,
        node: str = "",
        lease_seconds: int = 86_400,
        timing: Timing | None = None,
        draw: Draw = random.randrange,
    ) -> None:
        self._timing = timing or Timing()
        self._client = EtcdClient(settings, self._timing, f"flannelette-lease/{node or 'central'}")
        self._keyspace = Keyspace(settings.prefix)
        self._decoder = Decoder()
        self._etcd_leases = EtcdLeases(self._client, lease_seconds)
        self._draw = draw
        self._one_at_a_time = asyncio.Lock()
        """Requests of one process would only lose races against each other."""

    async def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store; the order of events is in Watcher."""
        watcher = Watcher(self._client, self._keyspace, self._decoder, self._timing)
        async with aclosing(watcher.events()) as events:
            async for event in events:
                yield event

    async def relist(self) -> Snapshot:
        """See Store."""
        return await relist(self._client, self._keyspace, self._decoder)

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store; the order of choice is in decide()."""
        async with self._one_at_a_time:
            for attempt in range(_ATTEMPTS):
                with suppress(HistoryLost, EtcdLeaseGone):  # as good as a lost race: look again
                    listed = await read_listing(self._client, self._keyspace, self._decoder)
                    table = read_table(self._keyspace, self._decoder, *listed)
                    if lease := await self._take(table, request):
                        await self._clear_orphans(table)
                        return lease
                await self._pause(attempt)
        raise LostRace(f"other nodes took {_ATTEMPTS} subnets before node {request.node} could: try again")

    async def renew(self, node: str, name: str) -> Lease:
        """See Store. A key that hangs on another etcd lease is put again, on the node's."""
        for attempt in range(_ATTEMPTS):
            entry = await self._entry(name)
            if entry is None or entry.lease is None or entry.node != node or entry.holder_item is None:
                raise NotFound(f"node {node} does not hold lease {name} any more: acquire a lease again")
            with suppress(EtcdLeaseGone):
                etcd_lease = await self._etcd_leases.keep(node, entry.holder_item.etcd_lease)
                transaction = extending(self._keyspace, entry, etcd_lease.number)
                if not transaction.writes or await self._client.transact(transaction):
                    return _returned(entry.lease, node, etcd_lease.expires_at)
            await self._pause(attempt)
        raise LostRace(f"lease {name} of node {node} keeps changing in etcd: try again")

    async def release(self, node: str, name: str) -> None:
        """See Store. A reservation loses its holder only."""
        async with self._one_at_a_time:
            for attempt in range(_ATTEMPTS):
                entry = await self._entry(name)
                if entry is None or entry.node != node or entry.holder_item is None:
                    return
                if await self._client.transact(giving_back(self._keyspace, entry)):
                    await self._etcd_leases.drop(node, entry.holder_item.etcd_lease)
                    return
                await self._pause(attempt)
        raise LostRace(f"lease {name} of node {node} keeps changing in etcd: try again")

    async def report(self, progress: Progress) -> None:
        """See Store. Nobody asks this store."""

    def made(self, name: str) -> int:
        """See Store."""
        return self._decoder.created(self._keyspace.subnet(name))

    async def discard(self, key: str, seen: Lease | str) -> None:
        """See Store."""
        await discard(self._client, self._keyspace, self._decoder, key, seen)

    async def close(self) -> None:
        """See Store."""
        await self._client.close()

    async def _entry(self, name: str) -> Entry | None:
        item, holder_item = await self._client.read(self._keyspace.subnet(name), self._keyspace.holder(name))
        return read_entry(self._decoder, name, item, holder_item) if item else None

    async def _take(self, table: Table, request: LeaseRequest) -> Lease | None:
        """The lease, None if somebody else was faster."""
        network, network_error = read_configuration(self._keyspace.config, table.config)
        if network is None:
            raise NotYet(network_error)
        decision = decide(table, network, request, self._draw, is_alive=_everybody_is_alive)
        etcd_lease = await self._etcd_leases.keep(request.node, _etcd_lease_of(decision))
        transaction = taking(self._keyspace, table, decision, etcd_lease.number)
        if transaction.writes and not await self._client.transact(transaction):
            return None
        for entry in decision.given_up:
            log.info("a lease no longer fits the network and is given up", lease=entry.name, node=request.node)
        if decision.current is None or decision.current.node != request.node:
            log.info(
                "lease given", lease=decision.lease.name, node=request.node, adopted=decision.current is not None
            )
        return _returned(decision.lease, request.node, etcd_lease.expires_at)

    async def _clear_orphans(self, table: Table) -> None:
        """Best effort: the next acquisition sees what is left."""
        with suppress(Unavailable):
            for transaction in clearing(self._keyspace, table.orphans)[:_ORPHANS_AT_ONCE]:
                await self._client.transact(transaction)

    async def _pause(self, attempt: int) -> None:
        await asyncio.sleep(random.uniform(0, min(0.02 * 2**attempt, _LONGEST_PAUSE)))  # noqa: S311 - jitter


def _etcd_lease_of(decision: Decision) -> int:
    """What the node's holder key hangs on; 0: not known."""
    own = (entry for entry in (decision.current, *decision.given_up) if entry and entry.node == decision.lease.node)
    return next((entry.holder_item.etcd_lease for entry in own if entry.holder_item), 0)


def _returned(lease: Lease, node: str, expires_at: float) -> Lease:
    return replace(lease, node=node, expires_at=None if lease.reserved else expires_at)


def _everybody_is_alive(node: str) -> bool:
    """Nobody says otherwise: there are no sessions yet."""
    return True
