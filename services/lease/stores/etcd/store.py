"""The store etcd: flannel's keys, compare-and-swap; its watch lists the prefix, follows it, and goes on after
outages.

Some things etcd ends by itself. The keys of a node hang on an etcd lease, one for each node, kept alive, and found
again after a restart. A session, `<prefix>/sessions/<node>`, says that a node's dataplane is connected to some lease
service. All sessions of one lease service hang on one etcd lease of 60 s that is kept alive, so that they end with
the process and cost one request each 20 s. Written is the difference between who is connected here and what etcd
holds; a session that another lease service has taken over is left to it.
"""

import asyncio
import math
import random
import time
from collections.abc import AsyncGenerator, Container, Mapping, Sequence, Set
from contextlib import aclosing, suppress
from dataclasses import replace
from itertools import islice
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
from flannelette.services.core.frozen import frozen
from flannelette.services.core.ipam import (
    Allocation,
    Draw,
    Reclaim,
    Sighting,
    Usage,
    allocate,
    check_reservation,
    concerned,
    find_reservation,
    is_another,
    is_own,
    name_taken,
    not_held,
    reclaimable,
    require_held,
    require_own,
    rivals_of,
    set_aside,
)
from flannelette.services.core.leases.conflicts import identities_in
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Progress, Subnet, lease_key
from flannelette.services.core.leases.table import StoreStatus
from flannelette.services.core.limits import nearest_time
from flannelette.services.lease.progress import ALIVE_SECONDS, ConnectedNodes
from flannelette.services.lease.stores.etcd.client import EtcdClient, Timing
from flannelette.services.lease.stores.etcd.prefix import (
    Decoded,
    Entry,
    KeyKind,
    Keyspace,
    Prefix,
    format_session,
    machine_of_session,
)
from flannelette.services.lease.stores.etcd.settings import EtcdSettings
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
from flannelette.services.lease.stores.etcd.values import (
    Delete,
    EtcdLeaseGone,
    HistoryLost,
    Item,
    NotAllowed,
    Put,
    Transaction,
    Unchanged,
    Untrue,
)
from flannelette.services.lease.stores.store import Reclaimed, Snapshot, StoreEvent, log_allocation
from flannelette.services.runtime.backoff import Backoff, jittered
from flannelette.services.runtime.telemetry.logs import get_logger
from flannelette.services.runtime.telemetry.metrics import Gauge

log = get_logger()

_EXPIRY_SECONDS: Final = 5.0
_ASKED_SECONDS: Final = 10.0
_MOST_ASKED: Final = 5_000
_ASKED_AT_ONCE: Final = 32


@frozen
class EtcdLease:
    """An etcd lease that is alive."""

    number: int
    expires_at: float
    """Unix seconds, whole ones: they read well and survive the wire unchanged."""


class EtcdLeases:
    """Remembers the number of each node's etcd lease; what the keys say counts more."""

    def __init__(self, client: EtcdClient, seconds: int, alive_seconds: float) -> None:
        self._client = client
        self._alive_seconds = alive_seconds
        self._seconds = seconds
        self._remembered: dict[str, int] = {}
        self._asking = asyncio.Lock()
        self._asked_until = 0.0
        self._expiry: dict[int, float] = {}

    async def keep(self, node: str, found: int) -> EtcdLease:
        """The node's etcd lease with its full time: the one that its holder key hangs on, else the last, else new.

        One that was granted a shorter time than is set now is left to run out.
        """
        for number in dict.fromkeys((found, self._remembered.get(node, 0))):
            now = time.time()
            seconds = await self._client.keep_alive(number) if number else 0
            if seconds >= self._seconds:
                return self._remember(node, number, now + seconds)
        number = random.randrange(1, 1 << 63)  # noqa: S311 - must be unused, not secret
        self._remembered[node] = number  # before the answer, which may be lost
        now = time.time()
        seconds = await self._client.grant(number, self._seconds)
        return self._remember(node, number, now + seconds)

    async def is_fresh(self, number: int) -> bool:
        """Whether it was granted or kept alive a moment ago: its node was connected then."""
        return self.is_recent(await self.renewed_ago(number))

    async def renewed_ago(self, number: int) -> float:
        """Seconds since it was granted or kept alive; infinite if there is none."""
        return await self._client.renewed_ago(number) if number else math.inf

    def is_recent(self, seconds_ago: float) -> bool:
        """Whether a sign of life of that time still counts."""
        return seconds_ago < self._alive_seconds

    async def expiry_times(self, numbers: Mapping[str, int]) -> dict[str, float]:
        """When these etcd leases expire, in Unix seconds, by the same names, as far as etcd says it in time.

        Asks at most _MOST_ASKED, and nothing for _ASKED_SECONDS after it has asked.
        """
        async with self._asking:
            if time.monotonic() >= self._asked_until:
                self._asked_until = time.monotonic() + _ASKED_SECONDS
                self._expiry = {}
                asked = sorted(set(numbers.values()))[:_MOST_ASKED]
                with suppress(TimeoutError, Unavailable):
                    async with asyncio.timeout(_EXPIRY_SECONDS):
                        for first in range(0, len(asked), _ASKED_AT_ONCE):
                            await asyncio.gather(*map(self._note_expiry, asked[first : first + _ASKED_AT_ONCE]))
        return {name: self._expiry[number] for name, number in numbers.items() if number in self._expiry}

    async def _note_expiry(self, number: int) -> None:
        now = time.time()
        if seconds := await self._client.expires_in(number):
            self._expiry[number] = float(int(nearest_time(now + seconds)))

    async def drop(self, node: str, found: int) -> None:
        """Revokes the node's etcd lease, if nothing hangs on it: the one that was found, else the last."""
        number = found or self._remembered.get(node, 0)
        if number and not await self._client.keys_on(number):
            await self._client.revoke(number)
        if self._remembered.get(node) == number:
            del self._remembered[node]

    def _remember(self, node: str, number: int, expires_at: float) -> EtcdLease:
        self._remembered[node] = number
        return EtcdLease(number, float(int(nearest_time(expires_at))))


_AT_ONCE: Final = 100
"""Writes in one transaction; etcd takes 128."""
_GATHERING: Final = 0.05
"""Seconds that a herd of dataplanes has to come together."""
_PAUSE: Final = 5.0
"""Seconds at most before trying again what failed."""

_sessions = Gauge("flannelette_etcd_sessions", "Sessions of nodes that this process keeps in etcd.")


@frozen
class SessionTiming:
    """Times of a session, in seconds."""

    lives: int = int(ALIVE_SECONDS)
    """Time to live of the etcd lease."""
    linger: float = 15.0
    """A session outlives the connection by this, so that a dataplane may restart."""

    @property
    def keep(self) -> float:
        """The time between two signs of life, so that two may get lost."""
        return self.lives / 3


class Sessions:
    """Keeps those of the dataplanes that are connected to this process. `service` tells a reader who does."""

    def __init__(
        self,
        client: EtcdClient,
        replica: Replica,
        transactor: Transactor,
        connected_nodes: ConnectedNodes,
        service: str,
        timing: SessionTiming | None = None,
    ) -> None:
        self._client = client
        self._replica = replica
        self._transactor = transactor
        self._connected_nodes = connected_nodes
        self._service = service
        self._timing = timing or SessionTiming()
        self._etcd_lease = 0
        self._kept_until = 0.0
        """When the next sign of life is due; monotonic."""
        self._known: set[str] = set()
        """Nodes whose session was written since they came."""

    async def run(self) -> None:
        """Keeps the sessions until cancelled. While etcd is away, tries again, with jitter."""
        seen = -1
        while True:
            try:
                await self._keep()
                seconds = self._timing.keep if not self._connected_nodes.lingering(self._timing.linger) else 1.0
            except (Unavailable, EtcdLeaseGone):  # the watch says so already; the session lives on for a while
                seconds = jittered(_PAUSE)
            try:
                async with asyncio.timeout(min(seconds, self._timing.keep)):
                    seen = await self._connected_nodes.changed_since(seen)
                await asyncio.sleep(_GATHERING)
            except TimeoutError:
                continue

    async def _keep(self) -> None:
        """One round: a sign of life if it is due, then what differs. Raises Unavailable, EtcdLeaseGone."""
        await self._replica.settle()
        wanted = self._connected_nodes.lingering(self._timing.linger)
        for node in list(self._connected_nodes.nodes):
            if (machine := self._machine(node)) is not None:
                wanted[node] = machine
        if wanted and time.monotonic() >= self._kept_until:
            await self._give_sign_of_life()
        await self._transactor.caught_up()  # else a session that has moved on meanwhile would be written again
        prefix = self._replica.prefix
        values = {node: format_session(self._service, machine) for node, machine in wanted.items()}
        known = {node for node in self._known if not _is_anothers(prefix, node, wanted.get(node, ""))}
        missing, over = differences(values, known, prefix.sessions, self._etcd_lease)
        keyspace = prefix.keyspace
        puts = (Put(keyspace.session(node), values[node], self._etcd_lease) for node in missing)
        while writes := tuple(islice(puts, _AT_ONCE)):
            await self._transactor.commit(Transaction((), writes))
        for item in over:
            await self._transactor.commit(Transaction((Unchanged(item.key, item.revision),), (Delete(item.key),)))
        self._known = set(wanted)
        await self._replica.settle()  # so that the first acquisition need not
        _sessions.set(len(wanted))

    def _machine(self, node: str) -> str | None:
        """The machine whose session the node gets, perhaps unknown; None: none. Refuses the streams of others."""
        for stream in list(self._connected_nodes.of(node)):
            if reason := self._connected_nodes.judge(node, stream.machine):
                self._connected_nodes.refuse(node, stream.machine, reason)
        machines = [stream.machine for stream in self._connected_nodes.of(node)]
        holders = [each for each in machines if not self._replica.prefix.held_by_others(node, each)]
        return next(iter((holders or machines)[-1:]), None)

    async def _give_sign_of_life(self) -> None:
        now = time.monotonic()
        if not self._etcd_lease or not await self._client.keep_alive(self._etcd_lease):
            if self._known:
                log.info("the sessions in etcd expired, and are written again")
            self._known.clear()
            number = random.randrange(1, 1 << 63)  # noqa: S311 - must be unused, not secret
            await self._client.grant(number, self._timing.lives)
            self._etcd_lease = number
        self._kept_until = now + self._timing.keep


def _is_anothers(prefix: Prefix, node: str, machine: str) -> bool:
    """Whether the session of the node is that of another machine, although this one holds the node's lease."""
    session = prefix.sessions.get(node)
    if not machine or session is None or not is_another(machine, machine_of_session(session.value)):
        return False
    return any(prefix.entries[claim.name].machine == machine for claim in prefix.claims.of_node(node))


def differences(
    wanted: Mapping[str, bytes], known: Container[str], sessions: Mapping[str, Item], etcd_lease: int
) -> tuple[list[str], list[Item]]:
    """Nodes whose session is to be written, and sessions of ours that are to be deleted. `wanted`: the values.

    Written is the session of a node that has none, or one of ours that says something else, and of a node that has
    just come (is not `known`): it moves here. A session that moves away later is left alone, else two services that
    both think that they have a node would take turns for ever.
    """
    ours = {node: item for node, item in sessions.items() if etcd_lease and item.etcd_lease == etcd_lease}
    missing = []
    for node, value in sorted(wanted.items()):
        if (item := ours.get(node)) is not None:
            is_due = item.value != value
        else:
            is_due = node not in sessions or node not in known
        if is_due:
            missing.append(node)
    return missing, [item for node, item in ours.items() if node not in wanted]


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
        log_allocation(allocation, node)
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


def _what_is(prefix: Prefix, key: Decoded) -> Lease | str | None:
    """What watchers were told of a key: why it is refused, else its lease."""
    entry = prefix.entries.get(key.name) if key.kind is KeyKind.SUBNET else None
    return prefix.refused.get(key.label) or (entry.served if entry else None)
