"""The SQLite file of the embedded store: a row per lease, and a copy of each with a checksum.

Statements run directly in the event loop. There is a handful an hour for each node, each touches one row of a small
table, and the one write that waits for the disk is the promise that a lease given out survives a power cut; a thread
would only move that wait, and bring two writers.
"""

import errno
import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, TypeAlias

from flannelette.services.core.errors import InvalidInput, Misconfigured, Unavailable
from flannelette.services.core.leases.flannel_json import format_value, parse_key, parse_lease
from flannelette.services.core.leases.lease import Lease, Subnet
from flannelette.services.core.limits import stored_time
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
