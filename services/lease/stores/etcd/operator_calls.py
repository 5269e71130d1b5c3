"""Reserve, unreserve, reclaim: what an operator asks of subnets in etcd."""

import time
from collections.abc import Sequence
from dataclasses import replace

from services.core.errors import LostRace
from services.core.family import Network
from services.core.lease import Lease, Subnet, lease_key
from services.lease.administration import (
    Reclaim,
    Reclaimed,
    Sighting,
    check_reservation,
    concerned,
    find_reservation,
    reclaimable,
)
from services.lease.stores.etcd.etcd_leases import EtcdLeases
from services.lease.stores.etcd.index import Index
from services.lease.stores.etcd.keyspace import Keyspace
from services.lease.stores.etcd.records import Transaction
from services.lease.stores.etcd.transactions import freeing, keeping, reclaiming, reserving, unreserving
from services.lease.stores.etcd.writer import Writer
from services.runtime.logs import get_logger

log = get_logger()


class OperatorCalls:
    """The calls of one store."""

    def __init__(self, keyspace: Keyspace, index: Index, writer: Writer, etcd_leases: EtcdLeases) -> None:
        self._keyspace = keyspace
        self._index = index
        self._writer = writer
        self._etcd_leases = etcd_leases
        self._started = time.monotonic()

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """See Store."""
        name = lease_key(cidrs)

        async def decide() -> tuple[Transaction, Lease]:
            existing = check_reservation(self._index.claims, self._index.occupancy, cidrs, node)
            if existing is None:
                unused = tuple(map(Subnet, sorted(cidrs, key=lambda cidr: cidr.version)))
                return reserving(self._keyspace, self._index, unused, node), Lease(name, node, unused, reserved=True)
            entry = self._index.entries[name]
            if entry.lease is None:
                raise LostRace(f"the key {name} was overwritten by another program: see `flannelette quarantine`")
            return keeping(self._keyspace, entry), Lease(
                name, node, entry.lease.subnets, entry.lease.backend_type, reserved=True
            )

        lease = await self._writer.write(decide, f"{name} keeps changing in etcd: try again")
        log.info("subnet reserved", reservation=name, node=node)
        return self._index.dated(lease)

    async def unreserve(self, name: str) -> None:
        """See Store."""

        async def decide() -> tuple[Transaction, None]:
            claim = find_reservation(self._index.claims, name)
            kept = None
            if claim.in_use:
                kept = await self._etcd_leases.keep(claim.node, self._index.etcd_lease_of(claim.node))
                claim = find_reservation(self._index.claims, name)
            entry = self._index.entries[name]
            if kept and claim.in_use:
                return unreserving(self._keyspace, entry, kept.number), None
            return freeing(self._keyspace, entry), None

        await self._writer.write(decide, f"{name} keeps changing in etcd: try again")
        log.info("reservation ended", reservation=name)

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """See Store. One that changes in the last moment, or whose node comes back, is left out."""
        await self._writer.refresh()
        now = time.time()
        claims = concerned(self._index.claims, wanted)
        sightings = {node: await self._sighting(node, now) for node in {claim.node for claim in claims} - {""}}
        done = []
        for claim in reclaimable(claims, wanted, sightings.__getitem__, now):
            entry = self._index.entries.get(claim.name)
            if entry is None or entry.claim != claim:
                continue
            if dry_run or await self._writer.try_once(reclaiming(self._keyspace, entry)):
                lease = entry.lease or Lease(entry.name, "", tuple(map(Subnet, claim.cidrs)))
                seen_at = sightings[claim.node].seen_at if claim.node else None
                done.append(Reclaimed(replace(lease, node=claim.node), seen_at))
        if not dry_run:
            log.warning("leases taken back", leases=[reclaimed.lease.name for reclaimed in done])
        return tuple(done)

    async def _sighting(self, node: str, now: float) -> Sighting:
        if node in self._index.sessions:
            return Sighting(True, now)
        renewed_ago = await self._etcd_leases.renewed_ago(self._index.etcd_lease_of(node))
        connected_ago = time.monotonic() - self._index.session_ended.get(node, self._started)
        return Sighting(self._etcd_leases.is_recent(renewed_ago), now - min(renewed_ago, connected_ago))
