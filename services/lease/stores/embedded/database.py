"""The SQLite file of the embedded store: a row per lease.

Statements run directly in the event loop. There is a handful an hour for each node, each touches one row of a small
table, and the one write that waits for the disk is the promise that a lease given out survives a power cut; a thread
would only move that wait, and bring two writers.
"""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Final

from services.core.errors import InvalidInput, Misconfigured, Unavailable
from services.core.leases.flannel_json import format_value, parse_key, parse_lease
from services.core.leases.lease import Lease, Subnet
from services.core.limits import stored_time

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


class Database:
    """Leases in a file, or in memory with None. The file belongs to one process until it is closed.

    Raises Misconfigured if it cannot be opened, is in use, damaged or something else; nothing is ever deleted or
    repaired then. A write that fails later is Unavailable, and has not happened.
    """

    def __init__(self, path: Path | None) -> None:
        self._name = str(path or ":memory:")
        try:
            if path is not None:
                path.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
            self._connection = sqlite3.connect(self._name, timeout=0, isolation_level=None)
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
        except sqlite3.DatabaseError as error:
            self.close()
            raise Misconfigured(
                f"the lease database {path} is damaged or something else ({error}), and was left as it is: restore "
                "it, use another --store-file, or move it away to begin without leases"
            ) from None

    def load(self) -> tuple[dict[str, Lease], dict[str, str]]:
        """All leases by name, and the rows that are none, with the reason. These stay where they are."""
        leases: dict[str, Lease] = {}
        refused: dict[str, str] = {}
        rows = self._connection.execute("SELECT name, node, value, reserved, expires_at FROM lease ORDER BY name")
        for name, node, value, reserved, expires_at in rows:
            try:
                lease = _lease(name, node, value, bool(reserved))
                leases[lease.name] = lease.with_time(stored_time(expires_at, "expires_at"))
            except InvalidInput as error:
                refused[str(name)] = str(error)
        return leases, refused

    def write(self, put: Iterable[Lease] = (), delete: Iterable[str] = ()) -> None:
        """Deletes and puts, all or nothing; on disk when it returns. Raises Unavailable."""
        rows = [(lease.name, lease.node, _value(lease), int(lease.reserved), lease.expires_at) for lease in put]
        try:
            with _Transaction(self._connection):
                self._connection.executemany("DELETE FROM lease WHERE name = ?", [(name,) for name in delete])
                self._connection.executemany("INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise Unavailable(
                f"cannot write the lease database {self._name}: {error}; nothing was changed, free its disk and retry"
            ) from None

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
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")

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


def _lease(key: object, node: object, value: object, reserved: bool) -> Lease:
    if not (isinstance(key, str) and isinstance(node, str) and isinstance(value, str)):
        raise InvalidInput(f"the row of {key!r:.60} has something else than text")
    if value:
        return parse_lease(key, value, node=node, reserved=reserved)
    return Lease(key, node, tuple(Subnet(cidr) for cidr in parse_key(key)), reserved=reserved)
