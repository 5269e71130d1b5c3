"""The store etcd: flannel's keys, compare-and-swap; its watch lists the prefix, follows it, and goes on after
outages.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Sequence, Set
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Final

from flannelette.services.core.errors import (
    Exhausted,
    InvalidInput,
    LostRace,
    NameTaken,
    NotFound,
    NotYet,
    Unavailable,
)
from flannelette.services.core.family import Family, Network
from flannelette.services.core.ipam.allocation import Allocation, allocate, require_own, rivals_of
from flannelette.services.core.ipam.claims import is_own, name_taken, not_held, require_held
from flannelette.services.core.ipam.reservations import (
    Reclaim,
    Sighting,
    check_reservation,
    concerned,
    find_reservation,
    reclaimable,
    set_aside,
)
from flannelette.services.core.ipam.subnet_pool import Draw, Usage
from flannelette.services.core.leases.conflicts import identities_in
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Subnet, lease_key
from flannelette.services.core.leases.progress import Progress
from flannelette.services.core.leases.table import StoreStatus
from flannelette.services.lease.progress.connected import ALIVE_SECONDS, ConnectedNodes
from flannelette.services.lease.stores.etcd.keys import Decoded, KeyKind, Keyspace
from flannelette.services.lease.stores.etcd.prefix import Entry, Prefix
from flannelette.services.lease.stores.etcd.rpc.client import EtcdClient
from flannelette.services.lease.stores.etcd.rpc.members import Timing
from flannelette.services.lease.stores.etcd.rpc.settings import EtcdSettings
from flannelette.services.lease.stores.etcd.rpc.values import HistoryLost, NotAllowed, Transaction, Untrue
from flannelette.services.lease.stores.etcd.sessions import EtcdLease, EtcdLeases, Sessions, SessionTiming
from flannelette.services.lease.stores.etcd.transactor import (
    Replica,
    Transactor,
    clearing,
    deleting,
    extending,
    freeing,
    giving_back,
    keeping,
    leaving,
    reclaiming,
    reserving,
    taking,
    unreserving,
)
from flannelette.services.lease.stores.store import Reclaimed, Snapshot, StoreEvent
from flannelette.services.runtime.backoff import Backoff
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()


KIND: Final = "etcd"
_CONNECTED: Final = StoreStatus(KIND, connected=True)


class Watcher:
    """One iteration of Store.watch().

    * The first event that is no StoreStatus is a Snapshot. A StoreStatus comes when the state changes; connected
      follows the Snapshot, or precedes what happened during an outage that was resumed without a gap.
    * A lost connection resumes where it was; a compacted or replaced history is listed anew.
    * Never more than one attempt a pause; pauses double from `retry_first` to `retry_most` (`retry_not_allowed` when
      etcd does not let us in), with jitter, and start again after a watch that was open longer than that.
    """

    def __init__(self, client: EtcdClient, replica: Replica, timing: Timing) -> None:
        self._client = client
        self._replica = replica
        self._timing = timing
        self._is_listed = False
        """The changes since the replica's position are to be told; else all is listed."""
        self._status: StoreStatus | None = None
        self._opened_at = math.inf
        """When the watch of this attempt began to tell; never yet: infinite."""
        self._is_other_history = False
        """What is listed next has another history than what was told before."""
        self._pauses = Backoff(timing.retry_first, max(timing.retry_most, timing.retry_not_allowed))

    async def events(self) -> AsyncGenerator[StoreEvent, None]:
        """Yields the store's events for ever."""
        while True:
            self._opened_at, most = math.inf, self._timing.retry_most
            try:
                async with aclosing(self._connection()) as connection:
                    async for event in connection:
                        yield event
            except HistoryLost as lost:
                log.info("the changes since the last connection are not available: listing again", reason=str(lost))
                self._is_listed = False
                self._is_other_history |= lost.is_replaced
            except Unavailable as error:
                self._is_listed = self._is_listed and not isinstance(error, Untrue)
                if isinstance(error, NotAllowed):
                    most = self._timing.retry_not_allowed
                if status := self._changed(StoreStatus(KIND, connected=False, error=str(error))):
                    yield status
            if asyncio.get_running_loop().time() - self._opened_at > most:
                self._pauses.reset()
            await asyncio.sleep(self._pauses.next(most))

    async def _connection(self) -> AsyncGenerator[StoreEvent, None]:
        """Yields the events of one connection until it is lost. Raises HistoryLost or Unavailable."""
        replica, root = self._replica, self._replica.prefix.keyspace.root
        if self._is_listed:  # before we say that it is connected
            await self._client.require_history(root, replica.prefix.position, replica.prefix.newest)
        else:
            replica.replace(await replica.listing(replica.prefix))
            self._is_listed = True
            await asyncio.sleep(0)  # ten thousand leases take some 50 ms, here and in the consumer
            yield replace(replica.prefix.snapshot(), is_other_history=self._is_other_history)
            self._is_other_history = False
        try:
            async with aclosing(self._client.watch(root, replica.prefix.position)) as batches:
                async for batch in batches:
                    self._opened_at = min(self._opened_at, asyncio.get_running_loop().time())
                    changed = replica.fold(batch)  # who is told of it may ask at once
                    if status := self._changed(_CONNECTED):
                        yield status
                    if changed:
                        yield changed
        finally:
            replica.is_live = False

    def _changed(self, status: StoreStatus) -> StoreStatus | None:
        if status == self._status:
            return None
        self._status = status
        return status


_ORPHANS_AT_ONCE: Final = 20
_LOST: Final = "other nodes took the chosen subnet first too many times: try again"
_KEEPS_CHANGING: Final = "{what} keeps changing in etcd: try again"


class EtcdStore:
    """A Store (services/lease/stores/store.py) in etcd v3.

    Every write is a compare-and-swap on what was looked at; repeated after a lost answer it changes nothing more.
    Construction opens nothing; it raises Misconfigured for files that cannot be used. `node` is the node that the
    process serves, empty if central: etcd sees it in the user agent. A node counts as alive as long as it has a
    session, and for `alive_seconds` after it was given a lease or renewed it. `keep_sessions` runs for as long as the
    store is in use: it tells other lease services which nodes' dataplanes are connected to this one.
    """

    kind = KIND

    def __init__(
        self,
        settings: EtcdSettings,
        *,
        node: str = "",
        lease_seconds: int = 86_400,
        connected_nodes: ConnectedNodes | None = None,
        alive_seconds: float = ALIVE_SECONDS,
        timing: Timing | None = None,
        session_timing: SessionTiming | None = None,
        draw: Draw = random.randrange,
    ) -> None:
        self._timing = timing or Timing()
        self._client = EtcdClient(settings, self._timing, f"flannelette-lease/{node or 'central'}")
        keyspace, connected_nodes = Keyspace(settings.prefix), connected_nodes or ConnectedNodes()
        connected_nodes.judge = self._stranger
        self._replica = Replica(self._client, keyspace, connected_nodes)
        self._transactor = Transactor(self._client, keyspace, self._replica)
        self._etcd_leases = EtcdLeases(self._client, lease_seconds, alive_seconds)
        self._draw = draw
        self._started = time.monotonic()
        sessions = Sessions(
            self._client, self._replica, self._transactor, connected_nodes, node or "central", session_timing
        )
        self.keep_sessions, self.close = sessions.run, self._client.close
        self.check_members, self.findings = self._client.check_members, self._client.findings

    def watch(self) -> AsyncGenerator[StoreEvent, None]:
        """See Store; the order of events is in Watcher."""
        return Watcher(self._client, self._replica, self._timing).events()

    async def relist(self) -> Snapshot:
        """See Store."""
        return (await self._replica.fresh_listing()).snapshot()

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

        written = await self._transactor.write(decide, _KEEPS_CHANGING.format(what=f"lease {name} of node {node}"))
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

        written = await self._transactor.write(decide, _KEEPS_CHANGING.format(what=f"lease {name} of node {node}"))
        await self._etcd_leases.drop(node, written.result)

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

        written = await self._transactor.write_in_turn(decide, _KEEPS_CHANGING.format(what=name))
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

        await self._transactor.write_in_turn(decide, _KEEPS_CHANGING.format(what=name))
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

        await self._transactor.write(decide, _KEEPS_CHANGING.format(what=name))

    async def report(self, progress: Progress) -> float:
        """See Store. Nobody asks this store."""
        return 0.0

    def usage(self, family: Family) -> Usage:
        """How full the network is in one family, as far as the watch has told."""
        return self._replica.prefix.usage(family)

    async def expiry_times(self) -> dict[str, float]:
        """See KnowsExpiry."""
        return await self._etcd_leases.expiry_times(self._replica.prefix.etcd_leases())

    async def _keep(self, node: str, prefix: Prefix) -> EtcdLease:
        return await self._etcd_leases.keep(node, prefix.etcd_lease_of(node))

    def _stranger(self, node: str, machine: str) -> str:
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

    async def _sighting(self, prefix: Prefix, node: str, now: float) -> Sighting:
        if node in prefix.sessions:
            return Sighting(True, now)
        renewed_ago = await self._etcd_leases.renewed_ago(prefix.etcd_lease_of(node))
        ended = prefix.session_ended.get(node)
        connected_ago = time.monotonic() - (ended.at if ended else self._started)
        return Sighting(self._etcd_leases.is_recent(renewed_ago), now - min(renewed_ago, connected_ago))


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


def _what_is(prefix: Prefix, key: Decoded) -> Lease | str | None:
    """What watchers were told of a key: why it is refused, else its lease."""
    entry = prefix.entries.get(key.name) if key.kind is KeyKind.SUBNET else None
    return prefix.refused.get(key.label) or (entry.served if entry else None)
