"""The embedded store's file after the disk has changed it: no other lease comes out, and what can be told is told."""

import os
import random
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import pytest

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.stores.embedded import Database, Ledger
from tests.examples.leases import by_name, make_lease

LEASES: Final = [make_lease(number).with_time(2_000_000_000.0 + number) for number in range(1, 9)]
MACHINES: Final = {lease.name: f"m-{lease.node}" for lease in LEASES}
SOAK: Final = bool(os.environ.get("FLANNELETTE_SOAK"))
FLIPS: Final = 20_000 if SOAK else 2_000


def written(path: Path) -> bytes:
    with closing(Database(path)) as database:
        database.write(LEASES, machines=MACHINES)
    return path.read_bytes()


def flips(data: bytes, count: int) -> Iterator[bytes]:
    """The file with one bit changed: those of the pages that have something in them."""
    seed = int(os.environ.get("FLANNELETTE_SEED", 16))
    chance = random.Random(seed)  # noqa: S311 - which bit, no secret
    for _ in range(count):
        damaged = bytearray(data)
        damaged[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        yield bytes(damaged)


def test_no_flipped_bit_makes_another_lease_or_machine_and_none_ends_in_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    data, refused_files, damaged_rows = written(path), 0, 0
    for damaged in flips(data, FLIPS):
        path.write_bytes(damaged)
        try:
            with closing(Database(path)) as database:
                loaded = database.load()
        except (Misconfigured, Unavailable):
            refused_files += 1
            continue
        assert set(loaded.leases.items()) <= set(by_name(*LEASES).items())
        for lease in LEASES:
            assert lease.name in loaded.leases or loaded.refused
        assert all(loaded.machines[name] == MACHINES[name] for name in loaded.machines)
        damaged_rows += bool(loaded.stale or loaded.refused)
    assert damaged_rows > FLIPS / 50
    assert refused_files < FLIPS / 2


def test_a_damaged_row_comes_back_from_its_copy_and_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    written(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as disk:
        disk.execute("DROP TRIGGER lease_put")
        disk.execute("UPDATE lease SET node = 'other' WHERE name = ?", (LEASES[0].name,))
        disk.execute("UPDATE copy SET value = 'x' WHERE name = ?", (LEASES[1].name,))
    with closing(Database(path)) as database:
        ledger = Ledger(database)
        assert (ledger.leases, ledger.machines, ledger.refused) == (by_name(*LEASES), MACHINES, {})
    with closing(Database(path)) as database:
        assert database.load() == (by_name(*LEASES), MACHINES, {}, [])


def test_a_row_that_is_damaged_in_both_places_is_refused_by_its_name_and_takes_its_subnet(tmp_path: Path) -> None:
    path, name = tmp_path / "leases.db", LEASES[0].name
    written(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as disk:
        disk.execute("UPDATE copy SET value = '{}' WHERE name = ?", (name,))
        disk.execute("UPDATE lease SET value = '{} ' WHERE name = ?", (name,))
    with closing(Database(path)) as database:
        ledger = Ledger(database)
        assert ledger.leases == by_name(*LEASES[1:])
        assert f"quarantine --delete {name}" in ledger.refused[name]
        assert ledger.claims.get(name) is not None
        ledger.write(delete=[name])
        assert (ledger.refused, database.load().refused) == ({}, {})


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_a_damaged_log_of_a_killed_process_costs_nothing_that_was_answered(tmp_path: Path, kept: int) -> None:
    path = tmp_path / "leases.db"
    database = Database(path)
    for lease in LEASES:
        database.write([lease], machines=MACHINES)
    data, log = path.read_bytes(), Path(f"{path}-wal").read_bytes()
    database.close()
    for number, damaged in enumerate(flips(log, FLIPS // 20)):
        killed = tmp_path / f"{number}.db"
        killed.write_bytes(data)
        Path(f"{killed}-wal").write_bytes(damaged[: len(damaged) // kept] if kept else b"")
        with closing(Database(killed)) as again:
            assert again.load() == (by_name(*LEASES), MACHINES, {}, [])


def test_what_an_older_release_writes_meanwhile_counts_as_it_is(tmp_path: Path) -> None:
    """Which knows the table `lease` alone, and writes whole rows into it."""
    path = tmp_path / "leases.db"
    written(path)
    changed = make_lease(1, version=2)
    with closing(Database(None)) as database:
        database.write([changed])
        (row,) = database._connection.execute("SELECT * FROM lease")
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        older.execute("INSERT OR REPLACE INTO lease VALUES (?, ?, ?, ?, ?)", row)
        older.execute("DELETE FROM lease WHERE name = ?", (LEASES[1].name,))
    with closing(Database(path)) as database:
        expected: dict[str, Lease] = by_name(changed, *LEASES[2:])
        ledger = Ledger(database)
        assert (ledger.leases, ledger.refused) == (expected, {})
        assert database.load().stale == []


def test_a_database_of_an_older_release_is_read_and_sealed(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    written(path)
    with closing(sqlite3.connect(path, isolation_level=None)) as older:
        for what in ("TRIGGER lease_put", "TRIGGER lease_gone", "TABLE copy"):
            older.execute(f"DROP {what}")
    with closing(Database(path)) as database, suppress(Unavailable):
        ledger = Ledger(database)
        assert (ledger.leases, ledger.machines) == (by_name(*LEASES), {})
        assert database.load().stale == []
