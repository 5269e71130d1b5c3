"""The SQLite file of the embedded store."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from flannelette.services.core.errors import Misconfigured, Unavailable
from flannelette.services.core.ipam import set_aside
from flannelette.services.core.leases.lease import Lease
from flannelette.services.lease.stores.embedded import Database
from tests.examples.leases import by_name, make_lease
from tests.examples.strategies import leases

A, B = make_lease(1), make_lease(2)


@given(leases())
def test_every_lease_comes_back_as_it_was_put(lease: Lease) -> None:
    kept = replace(lease, node="some-node", expires_at=1234.0)
    with closing(Database(None)) as database:
        database.write(put=[kept])
        assert database.load() == ({kept.name: kept}, {}, {}, [])


def test_a_reservation_that_nobody_holds_comes_back() -> None:
    with closing(Database(None)) as database:
        free = set_aside(A.cidrs, A.node)
        database.write(put=[free])
        assert database.load() == (by_name(free), {}, {}, [])


def test_leases_survive_closing(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "new" / "leases.db")) as database:
        database.write(put=[A, B])
        database.write(put=[make_lease(1, version=2)], delete=[B.name])
    with closing(Database(tmp_path / "new" / "leases.db")) as database:
        assert database.load() == (by_name(make_lease(1, version=2)), {}, {}, [])


def test_a_second_process_is_told_that_the_file_is_in_use(tmp_path: Path) -> None:
    with closing(Database(tmp_path / "leases.db")) as first:
        first.write(put=[A])
        with pytest.raises(Misconfigured, match=r"leases\.db is in use by another process: stop it"):
            Database(tmp_path / "leases.db")
        first.write(put=[B])
        assert set(first.load()[0]) == {A.name, B.name}


@pytest.mark.parametrize("content", [b"this is not a database, but something an operator may need" * 100, b"SQLite?"])
def test_a_file_that_is_no_database_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "leases.db"
    path.write_bytes(content)
    with pytest.raises(Misconfigured, match=r"damaged or something else.*left as it is"):
        Database(path)
    assert path.read_bytes() == content
    assert sorted(tmp_path.iterdir()) == [path]


def test_a_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE lease (x)")
    before = path.read_bytes()
    with pytest.raises(Misconfigured, match="something else"):
        Database(path)
    assert path.read_bytes() == before


def test_a_damaged_database_is_told_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with closing(Database(path)) as database:
        database.write(put=[make_lease(number) for number in range(500)])
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 5] = b"\xff" * 8192
    path.write_bytes(content)
    with pytest.raises(Misconfigured, match="damaged"):
        Database(path)
    assert path.read_bytes() == content


def test_a_place_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Misconfigured, match="cannot open the lease database"):
        Database(tmp_path / "file" / "leases.db")
    with pytest.raises(Misconfigured, match="cannot open the lease database"):
        Database(tmp_path)


def test_a_row_that_is_no_lease_is_refused_and_stays(tmp_path: Path) -> None:
    path = tmp_path / "leases.db"
    with closing(Database(path)) as database:
        database.write(put=[A])
    with closing(sqlite3.connect(path, isolation_level=None)) as operator:
        operator.execute("INSERT INTO lease VALUES ('foo', 'n', '{}', 0, NULL)")
        operator.execute("INSERT INTO lease VALUES ('10.5.52.0-24', 'n', 'no json', 0, NULL)")
    for _ in range(2):
        with closing(Database(path)) as database:
            loaded = database.load()
            assert loaded.leases == by_name(A)
            assert set(loaded.refused) == {"foo", "10.5.52.0-24"}


def test_a_write_that_fails_changes_nothing_and_says_so() -> None:
    with closing(Database(None)) as database:
        database.write(put=[A])
        database._connection.execute(
            "CREATE TRIGGER full BEFORE INSERT ON lease BEGIN SELECT RAISE(ABORT, 'full'); END"
        )
        with pytest.raises(Unavailable, match="full; nothing was changed"):
            database.write(put=[B], delete=[A.name])
        assert database.load()[0] == by_name(A)
