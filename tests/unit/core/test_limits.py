"""Times and sizes from outside: within their bounds, or refused by name; also those of files.

Regression tests of hole 3.
"""

import json
import math
import os
import sqlite3
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.limits import LATEST, LONGEST, nearest_time, seconds_of, stored_time, unix_time
from flannelette.services.lease.stores.embedded import Database
from flannelette.services.runtime.cache import CachedTable, StateFile, state_in
from flannelette.services.runtime.older_state import node_state
from flannelette.services.runtime.state import Record, UnreadableState, pack, sealed
from tests.examples.leases import make_lease
from tests.examples.state_files import decode

T = TypeVar("T")
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
VALUE = '{"PublicIP":"10.99.0.2","PublicIPv6":null,"BackendType":"host-gw"}'


def or_refused(read: Callable[[], T], field: str) -> T | float:
    """What is read, or 0 where it is refused by the field's name."""
    try:
        return read()
    except InvalidInput as error:
        if not str(error).startswith(f"{field} is "):
            raise
        return 0.0


@given(seconds=INT64 | st.integers(-1, 253_402_300_900), nanos=INT32 | st.integers(-1, 10**9))
def test_a_time_can_be_told_on_or_is_refused(seconds: int, nanos: int) -> None:
    time = or_refused(lambda: unix_time(Timestamp(seconds=seconds, nanos=nanos), "since_time"), "since_time")
    assert 0 <= time <= LATEST
    Timestamp().FromNanoseconds(int(time * 1000) * 1_000_000)


@given(seconds=INT64 | st.integers(-100, 100), nanos=INT32, least=st.floats(-1e9, 0), most=st.floats(0, 1e9))
def test_a_duration_is_within_its_bounds_or_refused(seconds: int, nanos: int, least: float, most: float) -> None:
    told = Duration(seconds=seconds, nanos=nanos)
    assert least <= or_refused(lambda: seconds_of(told, "wait", least, most), "wait") <= most


@given(value=st.none() | st.floats() | st.integers() | st.text() | st.binary())
def test_what_a_file_calls_a_time_is_one_or_refused(value: object) -> None:
    time = or_refused(lambda: stored_time(value, "expires_at"), "expires_at")
    assert time is None or 0 <= time <= LATEST


def test_where_nothing_can_be_refused_the_nearest_time_is_meant() -> None:
    assert [nearest_time(t) for t in (math.nan, -1, math.inf, -math.inf, 7)] == [0, 0, LATEST, 0, 7]
    assert LONGEST < LATEST


@pytest.mark.parametrize("row", [
    (f"'n2', '{VALUE}', 0, 9e999"),
    (f"'n2', '{VALUE}', 0, -1.0"),
    (f"'n2', '{VALUE}', 0, 'tomorrow'"),
    (f"x'ff00', '{VALUE}', 0, NULL"),
    ("'n2', x'ff00', 0, NULL"),
])  # fmt: skip
def test_a_row_of_the_database_that_cannot_be_read_is_left_out(tmp_path: Path, row: str) -> None:
    path = tmp_path / "leases.db"
    database = Database(path)
    database.write([make_lease(1)])
    database.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"INSERT INTO lease SELECT '10.5.99.0-24', {row}")
    connection.close()
    database = Database(path)
    loaded = database.load()
    database.close()
    assert (list(loaded.leases), list(loaded.refused)) == ([make_lease(1).name], ["10.5.99.0-24"])


@pytest.mark.parametrize("header", [
    b"", b"{}", b"[]", b"null", b'{"node":"n1"}', b'{"node":"n1","own_lease":5,"former_subnets":[]}',
    b'{"node":"n1","own_lease":"Zg==","former_subnets":[]}', b'{"node":"n1","own_lease":"","former_subnets":7}',
    b'{"node":"n1","own_lease":"","former_subnets":[7]}', b"[" * 100_000,
])  # fmt: skip
def test_a_memory_whose_first_lines_say_nonsense_is_refused(header: bytes) -> None:
    lines = sealed("dataplane.state", pack("dataplane.state", [Record("node", header)]))
    if b"own_lease" not in header or b"7" in header:
        with pytest.raises(UnreadableState):
            decode("dataplane", b"".join(lines), "n1")
    rest = header + b"\n"
    data = b"flannelette-dataplane-state 1 " + sha256(rest).hexdigest().encode() + b"\n" + rest
    with pytest.raises(UnreadableState):
        state_in(list(node_state("dataplane.state", data) or ()), "n1")


def test_a_memory_from_a_time_that_cannot_be_is_used_and_told(tmp_path: Path) -> None:
    rest = json.dumps({"node": "n1", "own_lease": "", "former_subnets": []}).encode() + b"\n"
    path = tmp_path / "dataplane.state"
    path.write_bytes(b"flannelette-dataplane-state 1 " + sha256(rest).hexdigest().encode() + b"\n" + rest)
    for moment in (2**40, -(2**31)):
        os.utime(path, (0, moment))
        with StateFile(str(tmp_path), "dataplane") as file:
            cached_table = CachedTable("n1", file)
        assert 0 <= cached_table.confirmed_at <= LATEST
        assert "no lease service has sent any" in cached_table.since
