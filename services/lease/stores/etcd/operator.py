"""What an operator asks of leases in etcd: reserve, unreserve, reclaim, delete a refused key."""

import time
from collections.abc import Sequence
from dataclasses import replace

from flannelette.services.core.errors import LostRace, NotFound
from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease, Subnet, lease_key
from flannelette.services.lease.ipam.reservations import (
    Sighting,
    check_reservation,
    concerned,
    find_reservation,
    reclaimable,
    set_aside,
)
from flannelette.services.lease.stores.etcd.entry import Entry
from flannelette.services.lease.stores.etcd.etcd_leases import EtcdLeases
from flannelette.services.lease.stores.etcd.keys import Decoded, KeyKind
from flannelette.services.lease.stores.etcd.prefix import Prefix
from flannelette.services.lease.stores.etcd.rpc.values import Transaction
from flannelette.services.lease.stores.etcd.transactions import (
    deleting,
    freeing,
    keeping,
    reclaiming,
    reserving,
    unreserving,
)
from flannelette.services.lease.stores.etcd.transactor import Transactor
from flannelette.services.lease.stores.store import Reclaim, Reclaimed
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_KEEPS_CHANGING = "{name} keeps changing in etcd: try again"


class OperatorCalls:
    """The calls of one store."""

    def __init__(self, transactor: Transactor, etcd_leases: EtcdLeases) -> None:
        self._transactor = transactor
        self._etcd_leases = etcd_leases
        self._started = time.monotonic()

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """See Store."""
        name = lease_key(cidrs)

        async def decide(prefix: Prefix) -> tuple[Transaction, tuple[Prefix, Entry | None, Lease]]:
            existing = check_reservation(prefix.claims, prefix.pool, cidrs, node)
            if existing is None:
                unused = set_aside(cidrs, node)
                return reserving(prefix, unused), (prefix, None, unused)
            entry = prefix.entries[name]
            if entry.lease is None:
                raise LostRace(f"the key {name} was overwritten by another program: see `flannelette quarantine`")
            lease = Lease(name, node, entry.lease.subnets, entry.lease.backend_type, reserved=True)
            return keeping(prefix.keyspace, entry), (prefix, entry, lease)

        written = await self._transactor.write_in_turn(decide, _KEEPS_CHANGING.format(name=name))
        log.info("subnet reserved", reservation=name, node=node)
        prefix, entry, lease = written.result
        is_put = entry is None or written.puts(prefix.keyspace.subnet(name))
        return replace(lease, claim_order=written.revision if is_put or entry is None else entry.claim_order)

    async def unreserve(self, name: str) -> None:
        """See Store."""

        async def decide(prefix: Prefix) -> tuple[Transaction, None]:
            claim, kept = find_reservation(prefix.claims, name), None
            if claim.in_use:
                kept = await self._etcd_leases.keep(claim.node, prefix.etcd_lease_of(claim.node))
                claim = find_reservation(prefix.claims, name)
            entry = prefix.entries[name]
            if kept and claim.in_use:
                return unreserving(prefix.keyspace, entry, kept.number), None
            return freeing(prefix.keyspace, entry), None

        await self._transactor.write_in_turn(decide, _KEEPS_CHANGING.format(name=name))
        log.info("reservation ended", reservation=name)

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """See Store. One that changes in the last moment, or whose node comes back, is left out."""
        prefix, now = await self._transactor.current(), time.time()
        claims = concerned(prefix.claims, wanted)
        sightings = {
            node: await self._sighting(prefix, node, now) for node in {claim.node for claim in claims} - {""}
        }
        done = []
        for claim in reclaimable(claims, wanted, sightings.__getitem__, now):
            entry = prefix.entries.get(claim.name)
            if entry is None or entry.claim != claim:
                continue
            if dry_run or await self._transactor.commit(reclaiming(prefix.keyspace, entry)):
                lease = entry.lease or Lease(entry.name, "", tuple(map(Subnet, claim.cidrs)))
                seen_at = sightings[claim.node].seen_at if claim.node else None
                done.append(Reclaimed(replace(lease, node=claim.node), seen_at))
        if not dry_run:
            log.warning("leases taken back", leases=[reclaimed.lease.name for reclaimed in done])
        return tuple(done)

    async def discard(self, name: str, seen: Lease | str) -> None:
        """See Store. The holder beside a lease key goes with it."""

        async def decide(prefix: Prefix) -> tuple[Transaction, None]:
            keys = [decoded for decoded in prefix.keys().values() if decoded.label == name]
            if not keys:
                raise NotFound(f"etcd has no key {name} any more")
            found = next((decoded for decoded in keys if _what_is(prefix, decoded) == seen), None)
            if found is None:
                raise LostRace(f"the key {name} is something else by now: look at the quarantine again")
            return deleting(prefix, found), None

        await self._transactor.write(decide, _KEEPS_CHANGING.format(name=name))

    async def _sighting(self, prefix: Prefix, node: str, now: float) -> Sighting:
        if node in prefix.sessions:
            return Sighting(True, now)
        renewed_ago = await self._etcd_leases.renewed_ago(prefix.etcd_lease_of(node))
        ended = prefix.session_ended.get(node)
        connected_ago = time.monotonic() - (ended.at if ended else self._started)
        return Sighting(self._etcd_leases.is_recent(renewed_ago), now - min(renewed_ago, connected_ago))


def _what_is(prefix: Prefix, key: Decoded) -> Lease | str | None:
    """What watchers were told of a key: why it is refused, else its lease."""
    entry = prefix.entries.get(key.name) if key.kind is KeyKind.SUBNET else None
    return prefix.refused.get(key.label) or (entry.served if entry else None)
