"""Renew and release: what nodes ask of the leases that they have in etcd."""

from collections.abc import Set
from contextlib import suppress
from dataclasses import replace
from typing import Final

from services.core.errors import LostRace, NotFound
from services.core.lease import Lease
from services.lease.allocation import require_own, rivals_of
from services.lease.stores.etcd.client import EtcdClient
from services.lease.stores.etcd.decoder import Decoder
from services.lease.stores.etcd.entry import Entry, read_entry
from services.lease.stores.etcd.etcd_leases import EtcdLeases
from services.lease.stores.etcd.index import Index
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.records import EtcdLeaseGone
from services.lease.stores.etcd.released import note_released
from services.lease.stores.etcd.transactions import extending, giving_back
from services.runtime.logs import get_logger

log = get_logger()

_ATTEMPTS: Final = 12


class Leasing:
    """The calls of one store."""

    def __init__(
        self,
        client: EtcdClient,
        keyspace: Keyspace,
        decoder: Decoder,
        index: Index,
        etcd_leases: EtcdLeases,
    ) -> None:
        self._client = client
        self._keyspace = keyspace
        self._decoder = decoder
        self._index = index
        self._etcd_leases = etcd_leases

    async def renew(self, node: str, name: str) -> Lease:
        """See Store. A key that hangs on another etcd lease is put again, on the node's."""
        for _ in range(_ATTEMPTS):
            entry = await self._entry(name)
            if entry is None or entry.lease is None or entry.node != node or entry.holder_item is None:
                raise NotFound(f"node {node} does not hold lease {name} any more: acquire a lease again")
            await self._require_own(name)
            if entry.bound:
                return _returned(entry, entry.claim_order, None)
            with suppress(EtcdLeaseGone):
                etcd_lease = await self._etcd_leases.keep(node, entry.holder_item.etcd_lease)
                transaction = extending(self._keyspace, entry, etcd_lease.number)
                if not transaction.writes:
                    return _returned(entry, entry.claim_order, etcd_lease.expires_at)
                if revision := await self._client.transact(transaction):
                    is_put = any(write.key == entry.item.key for write in transaction.writes)
                    return _returned(entry, revision if is_put else entry.claim_order, etcd_lease.expires_at)
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
            if revision := await self._client.transact(note_released(self._keyspace, transaction)):
                self._index.apply(transaction, revision, complete=False)
                break
        else:
            raise LostRace(f"lease {name} of node {node} keeps changing in etcd: try again")
        await self._etcd_leases.drop(node, etcd_lease)

    async def _require_own(self, name: str) -> None:
        """By what the watch has told; without one the next renewal sees to it."""
        claims = self._index.claims if self._index.live else None
        claim = claims.get(name) if claims else None
        if claims is not None and claim is not None:
            rivals = {other.node for other in rivals_of(claims, claim.node, claim.identities)}
            if rivals:
                alive = await living(self._index, self._etcd_leases, rivals)
                require_own(claims, name, alive.__contains__)

    async def _entry(self, name: str) -> Entry | None:
        item, holder_item = await self._client.read(self._keyspace.subnet(name), self._keyspace.holder(name))
        return read_entry(self._decoder, name, item, holder_item) if item else None


async def living(index: Index, etcd_leases: EtcdLeases, nodes: Set[str]) -> frozenset[str]:
    """Those of the nodes that have a session, or renewed their lease a moment ago."""
    alive = nodes & index.sessions.keys()
    fresh = {node for node in nodes - alive if await etcd_leases.is_fresh(index.etcd_lease_of(node))}
    return frozenset(alive | fresh)


def _returned(entry: Entry, claim_order: int, expires_at: float | None) -> Lease:
    assert entry.lease is not None  # noqa: S101 - its node holds it
    times = None if entry.lease.reserved else expires_at
    return replace(entry.lease, node=entry.node, claim_order=claim_order, expires_at=times)
