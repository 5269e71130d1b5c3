"""The embedded store: leases in a SQLite file, the network in a JSON file, and no other process.

The file has a row per lease, and a copy of each with a checksum. Statements run directly in the event loop. There
is a handful an hour for each node, each touches one row of a small table, and the one write that waits for the disk
is the promise that a lease given out survives a power cut; a thread would only move that wait, and bring two writers.
"""

import asyncio
import errno
import heapq
import json
import math
import os
import random
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, NamedTuple, TypeAlias

from flannelette.services.core.errors import (
    InvalidInput,
    LostRace,
    Misconfigured,
    NameTaken,
    NotFound,
    NotYet,
    Unavailable,
)
from flannelette.services.core.family import Family, Network
from flannelette.services.core.ipam import (
    Claim,
    Claims,
    Draw,
    Reclaim,
    Sighting,
    SubnetPool,
    Usage,
    allocate,
    check_reservation,
    claim_of,
    concerned,
    find_reservation,
    is_another,
    is_own,
    name_taken,
    reclaimable,
    require_held,
    require_own,
    set_aside,
)
from flannelette.services.core.leases.flannel_json import format_value, parse_key, parse_lease
from flannelette.services.core.leases.lease import Lease, LeaseRequest, Progress, Subnet
from flannelette.services.core.leases.table import Change, Removed, StoreStatus, Upserted
from flannelette.services.core.limits import stored_time
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.progress import ALIVE_SECONDS, ConnectedNodes
from flannelette.services.lease.stores.store import (
    Changed,
    Reclaimed,
    Snapshot,
    StoreEvent,
    log_allocation,
    read_network_file,
)
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_APPLICATION: Final = 0x666C616E
"""Marks our files (PRAGMA application_id): `flan`."""
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE lease (
    name TEXT PRIMARY KEY,      -- flannel's key: 10.5.52.0-24
    node TEXT NOT NULL,         -- empty: nobody holds it
    value TEXT NOT NULL,        -- flannel's JSON; empty: a reservation that nobody holds
    reserved INTEGER NOT NULL,
    expires_at REAL             -- Unix seconds; NULL: never
) WITHOUT ROWID
"""
_ROOM: Final = 1 << 16
"""Bytes that a disk must have free after a write has failed: small changes fit into what the file has already."""
_OLDER: Final = "older"
"""Mark in place of a checksum: an older release, which knows the table `lease` only, has written the row."""
_COPIES: Final = (
    """
CREATE TABLE copy (
    name TEXT PRIMARY KEY, node TEXT, value TEXT, reserved INTEGER, expires_at REAL,    -- as in `lease`
    machine TEXT,           -- the token of the node's machine; empty: unknown
    checksum TEXT           -- of all columns before it
) WITHOUT ROWID""",
    """
CREATE TRIGGER lease_put AFTER INSERT ON lease BEGIN
    INSERT OR REPLACE INTO copy VALUES (NEW.name, NEW.node, NEW.value, NEW.reserved, NEW.expires_at, '', 'older');
END""",
    "CREATE TRIGGER lease_gone AFTER DELETE ON lease BEGIN DELETE FROM copy WHERE name = OLD.name; END",
    "INSERT INTO copy SELECT name, node, value, reserved, expires_at, '', 'older' FROM lease",
)
_DAMAGED: Final = (
    "the row {name} of the lease database does not match its checksum: the disk has damaged it, and nothing is read "
    "from it; `flannelette quarantine --delete {name}` removes it"
)
_ROWS: Final = "SELECT name, node, value, reserved, expires_at FROM lease"
_ROW_COPIES: Final = "SELECT name, node, value, reserved, expires_at, machine, checksum FROM copy"
Row: TypeAlias = tuple[object, ...]
"""The columns of a lease as the file has them."""


class Loaded(NamedTuple):
    """What the file holds."""

    leases: dict[str, Lease]
    """All leases by name."""
    machines: dict[str, str]
    """The token of the machine that holds a lease, by the lease's name, where it is known."""
    refused: dict[str, str]
    """Rows that are no leases or are damaged, by name, with the reason. They stay where they are."""
    stale: list[Lease]
    """Leases to be written again: of an older release, or damaged in one of their two places."""


class Database:
    """Leases in a file, or in memory with None. The file belongs to one process until it is closed.

    Raises Misconfigured if it cannot be opened, is in use, damaged or something else; nothing is ever deleted or
    repaired then. A write that fails later is Unavailable, and has not happened.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._name = str(path or ":memory:")
        try:
            if path is not None:
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._name, timeout=0, isolation_level=None)
            self._connection.text_factory = lambda text: text.decode(errors="replace")  # the checksum tells
        except (OSError, sqlite3.OperationalError) as error:
            raise Misconfigured(
                f"cannot open the lease database {path}: {error}; give the service the right to, or use another "
                "--store-file (`memory` keeps nothing)"
            ) from None
        try:
            self._take()
        except sqlite3.OperationalError as error:
            self.close()
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise Misconfigured(
                    f"the lease database {path} is in use by another process: stop it, or use another --store-file"
                ) from None
            raise Misconfigured(f"cannot use the lease database {path}: {error}; use another --store-file") from None
        except (sqlite3.DatabaseError, ValueError, OverflowError) as error:
            self.close()
            raise Misconfigured(
                f"the lease database {path} is damaged or something else ({error}), and was left as it is: restore "
                "it, use another --store-file, or move it away to begin without leases"
            ) from None

    def load(self) -> Loaded:
        """Reads all leases. Raises Unavailable where the file cannot be read any more."""
        try:
            rows: dict[object, Row] = {row[0]: row for row in self._connection.execute(_ROWS)}
            copies: dict[object, Row] = {row[0]: row for row in self._connection.execute(_ROW_COPIES)}
        except (sqlite3.Error, ValueError, OverflowError) as error:
            raise Unavailable(
                f"the lease database {self._name} is damaged ({error}), and was left as it is: restore it, use "
                "another --store-file, or move it away to begin without leases"
            ) from None
        loaded = Loaded({}, {}, {}, [])
        for name in sorted(rows.keys() | copies.keys(), key=str):
            try:
                row = _whole(name, rows.get(name), copies.get(name))
                lease = _lease(row[0], row[1], row[2], bool(row[3]))
                loaded.leases[lease.name] = lease.with_time(stored_time(row[4], "expires_at"))
                if isinstance(row[5], str) and row[5]:
                    loaded.machines[lease.name] = row[5]
                if (rows.get(name), copies.get(name)) != (row[:5], (*row, _checksum(row))):
                    loaded.stale.append(loaded.leases[lease.name])
            except InvalidInput as error:
                loaded.refused[str(name)] = str(error)
        return loaded

    def write(
        self, put: Iterable[Lease] = (), delete: Iterable[str] = (), machines: Mapping[str, str] | None = None
    ) -> None:
        """Deletes and puts, all or nothing; on disk when it returns. Raises Unavailable.

        `machines`: the tokens of the machines that hold leases, by the name of the lease.
        """
        rows: list[Row] = [
            (lease.name, lease.node, _value(lease), int(lease.reserved), lease.expires_at) for lease in put
        ]
        copies = [(*row, (machines or {}).get(str(row[0]), "")) for row in rows]
        try:
            with _Transaction(self._connection):
                names = [(name,) for name in delete]
                self._connection.executemany("DELETE FROM lease WHERE name = ?", names)
                self._connection.executemany("DELETE FROM copy WHERE name = ?", names)  # of which the row was lost
                self._connection.executemany("INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?)", rows)
                self._connection.executemany(
                    "INSERT OR REPLACE INTO copy VALUES (?, ?, ?, ?, ?, ?, ?)",
                    [(*copy, _checksum(copy)) for copy in copies],
                )
        except sqlite3.Error as error:
            raise Unavailable(
                f"cannot write the lease database {self._name}: {error}; nothing was changed, free its disk and retry"
            ) from None

    def probe(self) -> None:
        """Writes what is there already, to see whether that is possible. Raises Unavailable, also on a full disk."""
        try:
            if self._path is not None:
                disk = os.statvfs(self._path.parent)
                if disk.f_bavail * disk.f_frsize < _ROOM:
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            with _Transaction(self._connection):
                self._connection.execute(f"PRAGMA user_version = {_VERSION}")
        except (sqlite3.Error, OSError) as error:
            raise Unavailable(f"cannot write the lease database {self._name}: {error}; free its disk") from None

    def close(self) -> None:
        """Gives the file back."""
        self._connection.close()

    def _take(self) -> None:
        """Locks the file, and makes sure that it is ours and whole."""
        connection = self._connection
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        with _Transaction(connection):
            application, version = (self._pragma(name) for name in ("application_id", "user_version"))
            tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if application == 0 and version == 0 and tables == 0:
                connection.execute(_SCHEMA)
                connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                connection.execute(f"PRAGMA user_version = {_VERSION}")
            elif (application, version) != (_APPLICATION, _VERSION):
                raise sqlite3.DatabaseError(f"application {application}, version {version}")
            check = self._pragma("quick_check")
            if check != "ok":
                raise sqlite3.DatabaseError(str(check).replace("\n", "; "))
            if not connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'copy'").fetchone()[0]:
                for statement in _COPIES:
                    connection.execute(statement)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_autocheckpoint = 1")  # damage of the log then costs nothing that was answered

    def _pragma(self, name: str) -> object:
        row = self._connection.execute(f"PRAGMA {name}").fetchone()
        return row[0]


class _Transaction:
    """BEGIN EXCLUSIVE, then COMMIT, or ROLLBACK on an error."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN EXCLUSIVE")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT" if kind is None else "ROLLBACK")


def _value(lease: Lease) -> str:
    return format_value(lease) if any(subnet.public_address for subnet in lease.subnets) else ""


def _checksum(row: Row) -> str:
    return sha256(json.dumps(row, default=repr).encode()).hexdigest()[:32]


def _whole(name: object, row: Row | None, copy: Row | None) -> Row:
    """The columns of a lease and its machine. Raises InvalidInput for a name whose row and copy are both damaged.

    Whichever of the two the checksum confirms is what was written. What an older release has written counts as it is.
    """
    if row is not None and copy is not None and copy[6] == _OLDER:
        return (*row, "")
    if copy is not None:
        for found in (copy[:6], (*(row or ()), copy[5])):
            if len(found) == 6 and _checksum(found) == copy[6]:
                return found
        if row == copy[:5]:  # then it is the checksum that is damaged, or the machine, which a row does not have
            return (*copy[:5], "")
    raise InvalidInput(_DAMAGED.format(name=ascii(name)[1:-1]))


def _lease(key: object, node: object, value: object, reserved: bool) -> Lease:
    if not (isinstance(key, str) and isinstance(node, str) and isinstance(value, str)):
        raise InvalidInput(f"the row of {key!r:.60} has something else than text")
    if value:
        return parse_lease(key, value, node=node, reserved=reserved)
    return Lease(key, node, tuple(Subnet(cidr) for cidr in parse_key(key)), reserved=reserved)


_AS_BEFORE: Final = MappingProxyType[str, str]({})
_TOLERANCE: Final = 5.0
"""Seconds. NTP moves a clock that is off by less without a jump; small steps add up."""


class ClockJumps:
    """`clock` is Unix time, `timer` one that only ever goes on. Neither knows what passed between two processes."""

    def __init__(self, clock: Callable[[], float], timer: Callable[[], float]) -> None:
        self._clock = clock
        self._timer = timer
        self._offset = self._now()

    @property
    def seconds(self) -> float:
        """How far the clock was set since the last `take`; 0 if that is next to nothing."""
        seconds = self._now() - self._offset
        return seconds if abs(seconds) > _TOLERANCE else 0.0

    def take(self) -> None:
        """What was written by the clock of before is right again."""
        self._offset = self._now()

    def _now(self) -> float:
        return self._clock() - self._timer()


class Ledger:
    """What is written here has happened, and is on disk. No call's time grows with the number of leases."""

    def __init__(self, database: Database) -> None:
        self.leases, self.machines, self.refused, stale = database.load()
        if stale:
            log.warning("rows of the lease database are written again", leases=len(stale))
            with suppress(Unavailable):  # told by the next write
                database.write(stale, machines=self.machines)
        self.claims = Claims()
        self.pending: list[Change] = []
        """What happened since the watch emptied this list."""
        self.released: set[str] = set()
        """Names of leases that were deleted on request since the watch emptied this set."""
        self.cleared: set[str] = set()
        """Names that were refused, and are gone since the watch emptied this set."""
        self._database = database
        self._times: list[tuple[float, str]] = []
        """A heap. A lease that was renewed is in it twice; only the time that it still has counts."""
        for lease in self.leases.values():
            self._note(lease)
        for name in self.refused:
            try:
                self.claims.put(Claim(name, "", parse_key(name), ()))
            except InvalidInput:
                continue  # no subnet, so it blocks none

    def write(
        self,
        put: Iterable[Lease] = (),
        delete: Iterable[str] = (),
        *,
        ran_out: bool = False,
        machines: Mapping[str, str] = _AS_BEFORE,
    ) -> None:
        """Deletes (on request, or because they `ran_out`) and puts, all or nothing. Raises Unavailable.

        `machines`: by the name of the lease, the token of the machine that holds it from now on.
        """
        put, delete = list(put), list(delete)
        machines = {**self.machines, **machines}
        self._database.write(put, delete, machines)
        self.machines = {name: machine for name, machine in machines.items() if machine and name not in delete}
        for name in delete:
            self.leases.pop(name, None)
            self.claims.drop(name)
            self.cleared |= {name} & self.refused.keys()
            self.refused.pop(name, None)
        if not ran_out:
            self.released.update(delete)
        for lease in put:
            self.released.discard(lease.name)
            self.leases[lease.name] = lease
            self._note(lease)
        self.pending += [*map(Removed, delete), *map(Upserted, put)]

    def run_out(self, now: float) -> list[str]:
        """The names of leases whose time is over; they stay until they are deleted."""
        gone = set[str]()
        while self._times and self.next_time <= now:
            gone.add(heapq.heappop(self._times)[1])
        for name in gone:  # once more, for whom the deletion fails
            heapq.heappush(self._times, (now, name))
        return sorted(gone)

    @property
    def next_time(self) -> float:
        """When the next lease runs out; infinite if none does."""
        while self._times and not self._counts(*self._times[0]):
            heapq.heappop(self._times)
        return self._times[0][0] if self._times else math.inf

    def _counts(self, time: float, name: str) -> bool:
        lease = self.leases.get(name)
        return lease is not None and lease.expires_at is not None and lease.expires_at <= time

    def _note(self, lease: Lease) -> None:
        self.claims.put(claim_of(lease))
        if lease.expires_at is not None:
            heapq.heappush(self._times, (lease.expires_at, lease.name))


_REFRESH_SECONDS: Final = 1.0
"""Seconds between two reads of the network file: flannel's interval."""


class EmbeddedStore:
    """A store in this process: what it answers has happened, and is on disk.

    The file belongs to one process; leases survive a restart. `path` None keeps leases in memory. Without `presence`
    every node that holds a lease counts as alive.

    `clock` is Unix time, since a lease outlives the process that gave it. But whatever it says, no lease is lost by
    it: when it is set, every lease keeps the time that it has left by `timer`; one that ran out while there was no
    process, perhaps by a wrong clock, has another minute; and that of a connected node does not run out.
    """

    kind = "embedded"

    def __init__(
        self,
        path: Path | None,
        *,
        net_config_path: Path,
        lease_seconds: int,
        connected_nodes: ConnectedNodes | None = None,
        clock: Callable[[], float] = time.time,
        timer: Callable[[], float] = time.monotonic,
        draw: Draw = random.randrange,
    ) -> None:
        self._database = Database(path)
        self._connected_nodes = connected_nodes
        if connected_nodes is not None:
            connected_nodes.elsewhere = frozenset()  # nobody else opens this store
            connected_nodes.judge = self._stranger
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._jumps = ClockJumps(clock, timer)
        self._draw = draw
        self._net_config_path = net_config_path
        self._network: NetworkConfig | None = None
        """The last good one."""
        self._network_error = ""
        self._read_network()
        try:
            self._ledger = Ledger(self._database)
        except Unavailable as error:
            raise Misconfigured(str(error)) from None
        self._changed = asyncio.Event()
        self._is_writable = True
        """The last write has succeeded."""
        self._are_times_believed = False
        """Whether the times of leases are as our clock would have them; not yet, when the file has just been read."""

    async def watch(self) -> AsyncIterator[StoreEvent]:
        """See Store. One task does all that needs time: leases run out to the moment, the network file is read."""
        with suppress(Unavailable):  # said below
            self._expire()
        self._ledger.pending.clear()
        self._ledger.released.clear()
        yield Snapshot(dict(self._ledger.leases), self._network, self._network_error, self._ledger.refused)
        connected = True
        while True:
            try:
                if not self._is_writable:
                    self._database.probe()
                    self._is_writable = True
                self._expire()
            except Unavailable as error:  # a full disk, say: what has run out goes once it can be written
                connected = False
                yield StoreStatus(self.kind, connected, str(error))
                await asyncio.sleep(_REFRESH_SECONDS)
                continue
            if not connected:
                connected = True
                yield StoreStatus(self.kind, connected)
            has_changed, ledger = self._read_network(), self._ledger
            if has_changed or ledger.pending:
                network = self._network if has_changed and not self._network_error else None
                changes, ledger.pending = tuple(ledger.pending), []
                cleared, ledger.cleared = frozenset(ledger.cleared), set()
                released, ledger.released = frozenset(ledger.released), set()
                network_error = self._network_error if has_changed else ""
                yield Changed(changes, network, network_error, cleared=cleared, released=released)
            else:
                self._changed.clear()
                await self._wait_at_most(self._seconds_to_wait())

    async def relist(self) -> Snapshot:
        """See Store: what the file says, not what is in memory. The network is the one in force."""
        loaded = self._database.load()
        return Snapshot(loaded.leases, self._network, self._network_error, loaded.refused)

    async def acquire(self, request: LeaseRequest) -> Lease:
        """See Store. Never LostRace: nobody else writes."""
        self._expire()
        self._require_name(request.node, request.machine)
        chosen = allocate(self._ledger.claims, self._pool(), request, self._draw, self._is_alive)
        lease = chosen.lease if chosen.lease.reserved else chosen.lease.with_time(self._full_time())
        given_up = [self._ledger.leases[claim.name] for claim in chosen.given_up]
        self._write(
            put=[*(set_aside(gone.cidrs, gone.node) for gone in given_up if gone.reserved), lease],
            delete=[gone.name for gone in given_up if not gone.reserved],
            machines={**{gone.name: "" for gone in given_up}, lease.name: request.machine},
        )
        log_allocation(chosen, request.node)
        return lease

    async def renew(self, node: str, name: str, machine: str = "") -> Lease:
        """See Store."""
        self._expire()
        lease = self._ledger.leases[require_held(self._ledger.claims, node, name).name]
        self._require_name(node, machine)
        require_own(self._ledger.claims, name, self._is_alive)
        if lease.reserved:
            return lease
        renewed = lease.with_time(self._full_time())
        self._write(put=[renewed])
        return renewed

    async def release(self, node: str, name: str) -> None:
        """See Store."""
        self._expire()
        lease = self._ledger.leases.get(name)
        if lease is None or not is_own(lease, node):
            return
        log.info("lease released", lease=name, node=node)
        if lease.reserved:
            self._write(put=[set_aside(lease.cidrs, node)], machines={name: ""})
        else:
            self._write(delete=[name])

    async def reserve(self, cidrs: Sequence[Network], node: str) -> Lease:
        """See Store."""
        self._expire()
        claims, pool = self._ledger.claims, self._pool()
        existing = check_reservation(claims, pool, cidrs, node)
        if existing is None:
            lease = set_aside(cidrs, node)
        else:
            lease = replace(self._ledger.leases[existing.name], reserved=True, expires_at=None)
        log.info("subnet reserved", reservation=lease.name, node=node)
        self._write(put=[lease])
        return lease

    async def unreserve(self, name: str) -> None:
        """See Store."""
        claim = find_reservation(self._ledger.claims, name)
        log.info("reservation ended", reservation=name)
        if claim.in_use:
            lease = replace(self._ledger.leases[name], reserved=False, expires_at=self._full_time())
            self._write(put=[lease])
        else:
            self._write(delete=[name])

    async def reclaim(self, wanted: Reclaim, *, dry_run: bool) -> tuple[Reclaimed, ...]:
        """See Store."""
        self._expire()
        claims = concerned(self._ledger.claims, wanted)
        chosen = reclaimable(claims, wanted, self._sighting, self._clock())
        known = [(self._ledger.leases.get(c.name), c) for c in chosen]
        done = tuple(
            Reclaimed(lease, self._sighting(claim.node).seen_at if claim.node else None)
            for lease, claim in known
            if lease is not None
        )
        if done and not dry_run:
            log.warning("leases taken back", leases=[reclaimed.lease.name for reclaimed in done])
            self._write(delete=[reclaimed.lease.name for reclaimed in done])
        return done

    async def report(self, progress: Progress) -> float:
        """See Store. Nobody asks this store."""
        return 0.0

    async def discard(self, key: str, seen: Lease | str) -> None:
        """See Store."""
        lease = self._ledger.leases.get(key)
        if (lease or self._ledger.refused.get(key)) is None:
            raise NotFound(f"there is no key {key} in the lease database any more")
        if seen not in (lease, self._ledger.refused.get(key)):
            raise LostRace(f"the key {key} is something else by now: look at the quarantine again")
        self._write(delete=[key])

    def usage(self, family: Family) -> Usage:
        """How full the network is in one family."""
        self._ledger.claims.lease_from(self._network)
        return self._ledger.claims.usage(family)

    async def close(self) -> None:
        """See Store."""
        self._database.close()

    def _read_network(self) -> bool:
        """Reads the file again, and says whether anything is new. The last good configuration stays in force."""
        before = self._network, self._network_error
        try:
            self._network, self._network_error = read_network_file(self._net_config_path), ""
        except InvalidInput as error:
            self._network_error = str(error)
        return before != (self._network, self._network_error)

    def _full_time(self) -> float:
        """Whole seconds read well, and survive the wire unchanged."""
        return float(math.ceil(self._clock() + self._lease_seconds))

    def _expire(self) -> None:
        if not self._are_times_believed:
            self._set_times(self._believable)
            self._are_times_believed = True
        if jump := self._jumps.seconds:
            log.warning("the clock was set: leases keep the time that they have left", seconds=round(jump))
            self._set_times(lambda time: time + jump)
            self._jumps.take()
        over = self._ledger.run_out(self._clock())
        there = self._connected_nodes.nodes if self._connected_nodes else ()
        kept = [lease for name in over if (lease := self._ledger.leases[name]).node in there]
        gone = [name for name in over if self._ledger.leases[name].node not in there]
        if gone:
            log.info("leases ran out", leases=gone)
        if over:
            self._write([lease.with_time(self._full_time()) for lease in kept], gone, ran_out=True)

    def _set_times(self, new: Callable[[float], float]) -> None:
        """Gives every lease the time that `new` makes of its own."""
        timed = ((lease, lease.expires_at) for lease in self._ledger.leases.values() if lease.expires_at is not None)
        changed = [lease.with_time(time) for lease, before in timed if (time := new(before)) != before]
        if changed:
            self._write(changed)

    def _believable(self, time: float) -> float:
        """What a file says may be by another clock than ours: at least a minute is left, at most the full time."""
        return min(max(time, math.ceil(self._clock() + ALIVE_SECONDS)), self._full_time())

    def _write(
        self,
        put: Iterable[Lease] = (),
        delete: Iterable[str] = (),
        *,
        ran_out: bool = False,
        machines: Mapping[str, str] | None = None,
    ) -> None:
        try:
            self._ledger.write(put, delete, ran_out=ran_out, machines=machines or {})
        except Unavailable:
            self._is_writable = False
            raise
        finally:
            self._changed.set()

    def _pool(self) -> SubnetPool:
        claims = self._ledger.claims
        claims.lease_from(self._network)
        if claims.pool is None:
            raise NotYet(self._network_error)
        return claims.pool

    def _stranger(self, node: str, machine: str) -> str:
        """Why a machine is not the one that has the node's name; empty: it may be."""
        for claim in self._ledger.claims.of_node(node):
            holder = self._ledger.machines.get(claim.name, "")
            if is_another(machine, holder) and self._sighting(node, holder).alive:
                return name_taken(node, claim.name, claim.addresses)
        return ""

    def _require_name(self, node: str, machine: str) -> None:
        if reason := self._stranger(node, machine):
            raise NameTaken(reason)

    def _is_alive(self, node: str) -> bool:
        return self._sighting(node).alive

    def _sighting(self, node: str, machine: str = "") -> Sighting:
        """Tells when the node was last seen: its dataplane (on this machine) is or was connected, or it was given a
        lease or renewed one.
        """
        now = self._clock()
        if self._connected_nodes is None:
            return Sighting(True, now)
        times = (self._ledger.leases[claim.name].expires_at for claim in self._ledger.claims.of_node(node))
        renewed = (time - self._lease_seconds for time in times if time is not None)
        seen_at = max(now - self._connected_nodes.seen_ago(node, machine), *renewed, -math.inf)
        return Sighting(now - seen_at < ALIVE_SECONDS, seen_at)

    def _seconds_to_wait(self) -> float:
        return max(0.0, min(_REFRESH_SECONDS, self._ledger.next_time - self._clock()))

    async def _wait_at_most(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._changed.wait()
