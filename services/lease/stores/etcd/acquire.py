"""AcquireLease, RenewLease and ReleaseLease in etcd: what nodes ask for."""

import math
import time
from collections.abc import Set
from contextlib import suppress
from dataclasses import replace
from typing import Final

from flannelette.services.core.errors import Exhausted, InvalidInput, NameTaken, NotYet, Unavailable
from flannelette.services.core.ipam.subnet_choice import Draw
from flannelette.services.core.leases.conflicts import identities_in
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.lease.ipam.allocation import Allocation, allocate, require_own, rivals_of
from flannelette.services.lease.ipam.claims import is_own, not_held, require_held
from flannelette.services.lease.ipam.machines import name_taken
from flannelette.services.lease.stores.etcd.entry import Entry
from flannelette.services.lease.stores.etcd.etcd_leases import EtcdLease, EtcdLeases
from flannelette.services.lease.stores.etcd.prefix import Prefix
from flannelette.services.lease.stores.etcd.rpc.values import Transaction
from flannelette.services.lease.stores.etcd.transactions import clearing, extending, giving_back, leaving, taking
from flannelette.services.lease.stores.etcd.transactor import Replica, Transactor
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_ORPHANS_AT_ONCE: Final = 20
_LOST: Final = "other nodes took the chosen subnet first too many times: try again"
_KEEPS_CHANGING: Final = "lease {name} of node {node} keeps changing in etcd: try again"


class NodeCalls:
    """The calls of one store."""

    def __init__(self, replica: Replica, transactor: Transactor, etcd_leases: EtcdLeases, draw: Draw) -> None:
        self._replica = replica
        self._transactor = transactor
        self._etcd_leases = etcd_leases
        self._draw = draw

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store; the order of choice is in `allocate`. A node that is refused is left without an etcd lease."""
        node, kept = request.node, None
        if self._replica.is_live:  # before our turn: others need not wait for this round trip
            await self._require_name(self._replica.prefix, node, request.machine)
            kept = await self._keep(node, self._replica.prefix)

        async def decide(prefix: Prefix) -> tuple[Transaction, tuple[Prefix, Allocation, EtcdLease, Entry | None]]:
            nonlocal kept
            await self._require_name(prefix, node, request.machine)
            if kept is None or prefix.etcd_lease_of(node) not in (0, kept.number):
                kept = await self._keep(node, prefix)
            etcd_lease, kept = kept, None  # for one try: on the second it may be gone
            rivals = rivals_of(prefix.claims, node, identities_in(request.parts, request.backend_type))
            alive = await self._living(prefix, {rival.node for rival in rivals})
            allocation = allocate(prefix.claims, prefix.pool, request, self._draw, alive.__contains__)
            current = prefix.entries.get(allocation.lease.name)
            return taking(prefix, allocation, etcd_lease.number, request.machine), (
                prefix,
                allocation,
                etcd_lease,
                current,
            )

        try:
            written = await self._transactor.write_in_turn(decide, _LOST)
        except (NotYet, Exhausted, InvalidInput):
            with suppress(Unavailable):
                await self._etcd_leases.drop(node, 0)
            raise
        prefix, allocation, etcd_lease, current = written.result
        _tell(allocation, node)
        await self._clear_orphans(prefix)
        is_put = written.puts(prefix.keyspace.subnet(allocation.lease.name))
        claim_order = written.revision if is_put or current is None else current.claim_order
        expires_at = None if allocation.lease.reserved else etcd_lease.expires_at
        return replace(allocation.lease, claim_order=claim_order, expires_at=expires_at)

    async def renew(self, node: str, name: str, machine: str = "") -> Lease:
        """See Store. A key that is attached to another etcd lease is put again, on the node's."""

        async def decide(prefix: Prefix) -> tuple[Transaction, tuple[Lease, int, EtcdLease | None]]:
            entry = prefix.entries[require_held(prefix.claims, node, name).name]
            if entry.lease is None:  # another program has overwritten it: an acquisition writes it again
                raise not_held(node, name)
            await self._require_name(prefix, node, machine)
            await self._require_own(prefix, entry)
            if entry.bound:
                return leaving(prefix, name), (entry.lease, entry.claim_order, None)
            etcd_lease = await self._keep(node, prefix)
            transaction = extending(prefix.keyspace, entry, etcd_lease.number)
            return transaction, (entry.lease, entry.claim_order, etcd_lease)

        written = await self._transactor.write(decide, _KEEPS_CHANGING.format(name=name, node=node))
        lease, claim_order, etcd_lease = written.result
        if written.puts(self._replica.prefix.keyspace.subnet(name)):
            claim_order = written.revision
        expires_at = None if lease.reserved or etcd_lease is None else etcd_lease.expires_at
        return replace(lease, node=node, claim_order=claim_order, expires_at=expires_at)

    async def release(self, node: str, name: str) -> None:
        """See Store. A reservation stays. One that had happened (its answer was lost) is brought to its end."""

        async def decide(prefix: Prefix) -> tuple[Transaction, int]:
            claim = prefix.claims.get(name)
            if claim is None or not (is_own(claim, node) and claim.in_use):
                return leaving(prefix, name), 0
            entry = prefix.entries[name]
            return giving_back(prefix.keyspace, entry), entry.etcd_lease

        written = await self._transactor.write(decide, _KEEPS_CHANGING.format(name=name, node=node))
        await self._etcd_leases.drop(node, written.result)

    async def _keep(self, node: str, prefix: Prefix) -> EtcdLease:
        return await self._etcd_leases.keep(node, prefix.etcd_lease_of(node))

    def stranger(self, node: str, machine: str) -> str:
        """Why a machine is not the one that has the node's name, by what the watch has told; empty: it may be."""
        prefix = self._replica.prefix
        for entry in prefix.held_by_others(node, machine):
            if prefix.is_connected(node, entry.machine):
                return _taken(entry)
        return ""

    async def _require_name(self, prefix: Prefix, node: str, machine: str) -> None:
        """Raises NameTaken while another machine of this name that holds a lease of the node is alive.

        It is before anything that is a sign of life of the node's etcd lease.
        """
        for entry in prefix.held_by_others(node, machine):
            is_alive = prefix.is_connected(node, entry.machine) or await self._etcd_leases.is_fresh(entry.etcd_lease)
            if is_alive or await self._just_left(prefix, node):
                raise NameTaken(_taken(entry))

    async def _just_left(self, prefix: Prefix, node: str) -> bool:
        """Whether the node's session has ended less than a minute ago because its dataplane has gone.

        Where it ended with the lease service that kept it, the last sign of life was a minute earlier.
        """
        ended = prefix.session_ended.get(node)
        if ended is None or not self._etcd_leases.is_recent(time.monotonic() - ended.at):
            return False
        return await self._etcd_leases.renewed_ago(ended.etcd_lease) < math.inf

    async def _require_own(self, prefix: Prefix, entry: Entry) -> None:
        """Raises NotYet if what the lease publishes is a living node's by the rule for claims."""
        claims, identities = prefix.claims, entry.claim.identities if entry.claim else ()
        if rivals := {rival.node for rival in rivals_of(claims, entry.node, identities)}:
            alive = await self._living(prefix, rivals)
            require_own(claims, entry.name, alive.__contains__)

    async def _living(self, prefix: Prefix, nodes: Set[str]) -> frozenset[str]:
        """Returns the nodes that have a session, or renewed their lease a moment ago."""
        alive = nodes & prefix.sessions.keys()
        fresh = {node for node in nodes - alive if await self._etcd_leases.is_fresh(prefix.etcd_lease_of(node))}
        return frozenset(alive | fresh)

    async def _clear_orphans(self, prefix: Prefix) -> None:
        """Best effort: the next acquisition sees what is left."""
        with suppress(Unavailable):
            for transaction in clearing(prefix)[:_ORPHANS_AT_ONCE]:
                await self._transactor.commit(transaction)


def _taken(entry: Entry) -> str:
    addresses = entry.claim.addresses if entry.claim else ()
    return name_taken(entry.node, entry.name, addresses)


def _tell(allocation: Allocation, node: str) -> None:
    for rival in sorted(allocation.rivals):
        log.warning("a public address, MAC or key is taken over: its node is not alive", node=node, rival=rival)
    for claim in allocation.given_up:
        log.info("a lease is given up", lease=claim.name, held_by=claim.node, for_node=node)
    if allocation.current is None or allocation.current.node != node:
        log.info("lease given", lease=allocation.lease.name, node=node, adopted=allocation.current is not None)
