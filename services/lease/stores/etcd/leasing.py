"""Acquire, renew, release: what nodes ask of their leases in etcd."""

import random
from contextlib import suppress
from dataclasses import replace
from typing import Final

import structlog

from services.core.errors import LostRace, NotFound, Unavailable
from services.core.lease import Lease, LeaseRequest
from services.core.subnets import Draw
from services.lease.allocation import Allocation, allocate, rivals_of
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.entry import Entry, read_entry
from services.lease.stores.etcd.etcd_leases import EtcdLease, EtcdLeases
from services.lease.stores.etcd.index import Index
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.records import EtcdLeaseGone, Transaction
from services.lease.stores.etcd.transactions import clearing, extending, giving_back, taking
from services.lease.stores.etcd.writer import Writer

log = structlog.get_logger()

_ATTEMPTS: Final = 12
_ORPHANS_AT_ONCE: Final = 20


class Leasing:
    """The calls of one store."""

    def __init__(
        self,
        client: EtcdClient,
        keyspace: Keyspace,
        decoder: Decoder,
        index: Index,
        writer: Writer,
        etcd_leases: EtcdLeases,
        draw: Draw = random.randrange,
    ) -> None:
        self._client = client
        self._keyspace = keyspace
        self._decoder = decoder
        self._index = index
        self._writer = writer
        self._etcd_leases = etcd_leases
        self._draw = draw

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store; the order of choice is in allocate()."""
        node, kept = request.node, None
        if self._index.live:  # before it is our turn, for it takes a round trip that others need not wait for
            kept = await self._keep(request)

        async def decide() -> tuple[Transaction, tuple[Allocation, EtcdLease]]:
            nonlocal kept
            etcd_lease, kept = kept, None  # of the second try on it may be gone
            if etcd_lease is None or self._index.etcd_lease_of(node) not in (0, etcd_lease.number):
                etcd_lease = await self._keep(request)
            alive = await self._living_rivals(request)
            allocation = allocate(self._index.claims, self._index.occupancy, request, self._draw, alive.__contains__)
            return taking(self._keyspace, self._index, allocation, etcd_lease.number), (allocation, etcd_lease)

        allocation, etcd_lease = await self._writer.write(
            decide, f"other nodes were faster than node {node} too many times: try again"
        )
        _tell(allocation, node)
        await self._clear_orphans()
        return _returned(allocation.lease, node, etcd_lease.expires_at)

    async def renew(self, node: str, name: str) -> Lease:
        """See Store. A key that hangs on another etcd lease is put again, on the node's."""
        for _ in range(_ATTEMPTS):
            entry = await self._entry(name)
            if entry is None or entry.lease is None or entry.node != node or entry.holder_item is None:
                raise NotFound(f"node {node} does not hold lease {name} any more: acquire a lease again")
            if entry.bound:
                return replace(entry.lease, node=node)
            with suppress(EtcdLeaseGone):
                etcd_lease = await self._etcd_leases.keep(node, entry.holder_item.etcd_lease)
                transaction = extending(self._keyspace, entry, etcd_lease.number)
                if not transaction.writes or await self._client.transact(transaction):
                    return _returned(entry.lease, node, etcd_lease.expires_at)
        raise LostRace(f"lease {name} of node {node} keeps changing in etcd: try again")

    async def release(self, node: str, name: str) -> None:
        """See Store. A reservation stays. One that had happened (its answer was lost) is brought to its end."""
        etcd_lease = 0
        for _ in range(_ATTEMPTS):
            entry = await self._entry(name)
            if entry is None or entry.node != node or entry.holder_item is None or not entry.claim.in_use:
                break
            etcd_lease = entry.holder_item.etcd_lease
            transaction = giving_back(self._keyspace, entry)
            if revision := await self._client.transact(transaction):
                self._index.apply(transaction, revision, complete=False)
                break
        else:
            raise LostRace(f"lease {name} of node {node} keeps changing in etcd: try again")
        await self._etcd_leases.drop(node, etcd_lease)

    async def _keep(self, request: LeaseRequest) -> EtcdLease:
        """The etcd lease of the node. A request that is refused anyhow gets none. Raises as `allocate`."""
        alive = await self._living_rivals(request)
        allocate(self._index.claims, self._index.occupancy, request, self._draw, alive.__contains__)
        return await self._etcd_leases.keep(request.node, self._index.etcd_lease_of(request.node))

    async def _living_rivals(self, request: LeaseRequest) -> frozenset[str]:
        """Nodes that hold an address of this request and have a session, or renewed their lease a moment ago."""
        rivals = {claim.node for claim in rivals_of(self._index.claims, request.node, request.wishes)}
        alive = rivals & self._index.sessions.keys()
        for node in rivals - alive:
            if await self._etcd_leases.is_fresh(self._index.etcd_lease_of(node)):
                alive.add(node)
        return frozenset(alive)

    async def _entry(self, name: str) -> Entry | None:
        item, holder_item = await self._client.read(self._keyspace.subnet(name), self._keyspace.holder(name))
        return read_entry(self._decoder, name, item, holder_item) if item else None

    async def _clear_orphans(self) -> None:
        """Best effort: the next acquisition sees what is left."""
        with suppress(Unavailable):
            for transaction in clearing(self._keyspace, self._index.orphans)[:_ORPHANS_AT_ONCE]:
                if revision := await self._client.transact(transaction):
                    self._index.apply(transaction, revision, complete=False)


def _tell(allocation: Allocation, node: str) -> None:
    for rival in sorted(allocation.rivals):
        log.warning("a public address is taken over: its node is not alive", node=node, rival=rival)
    for claim in allocation.given_up:
        log.info("a lease is given up", lease=claim.name, held_by=claim.node, for_node=node)
    if allocation.current is None or allocation.current.node != node:
        log.info("lease given", lease=allocation.lease.name, node=node, adopted=allocation.current is not None)


def _returned(lease: Lease, node: str, expires_at: float) -> Lease:
    return replace(lease, node=node, expires_at=None if lease.reserved else expires_at)
