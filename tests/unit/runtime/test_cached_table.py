"""When cached leases are in force, and when an own lease of before may still be ours."""

from dataclasses import replace
from pathlib import Path

import pytest

from flannelette.services.core.leases.table import Step, Table, Upserted
from flannelette.services.runtime.cache import CachedTable, StateFile, stale_reason, table_records
from flannelette.services.runtime.state import Record
from tests.examples.dataplane import CAPTURED, lease
from tests.examples.leases import SMALL_JSON, network
from tests.examples.state_files import encode
from tests.unit.runtime.test_node_state import NETWORK, OWN, PEERS, written

SNAPSHOT = Step(reset=True, network=network(SMALL_JSON), synced=True)


@pytest.fixture
def cached_table(tmp_path: Path) -> CachedTable:
    with StateFile(str(tmp_path), "dataplane") as file:
        file.put([written()])
        return CachedTable("n1", file)


def test_it_is_in_force_as_soon_as_nobody_will_tell_any_leases(cached_table: CachedTable) -> None:
    assert cached_table.choose(Table(), is_away=False) is None
    remembered = cached_table.choose(Table(), is_away=True)
    assert remembered is not None
    assert remembered.leases.keys() == {each.name for each in (*PEERS, OWN)}
    # Somebody answers, and has no snapshot yet.
    assert cached_table.choose(Table(), is_away=False) is remembered


def test_the_first_snapshot_ends_it_for_good(cached_table: CachedTable) -> None:
    told = Table()
    cached_table.choose(told, is_away=True)
    told.fold(Step(reset=True, network=NETWORK, changes=(Upserted(lease(CAPTURED["n2"])),)))
    assert cached_table.choose(told, is_away=False) is cached_table.table
    told.fold(Step(synced=True))
    assert cached_table.choose(told, is_away=False) is told
    assert cached_table.choose(told, is_away=True) is told
    assert cached_table.table is None


@pytest.mark.parametrize("was_in_force", [False, True])
def test_imports_that_the_lease_service_awaits_are_those_of_the_file(tmp_path: Path, was_in_force: bool) -> None:
    imported = replace(PEERS[0], name="west/a", node="west/a", cluster="west")
    with StateFile(str(tmp_path), "dataplane") as file:
        file.put(encode("dataplane", "n1", OWN, (), table_records(NETWORK, [*PEERS, imported], None)))
        cached_table = CachedTable("n1", file)
        if was_in_force:
            cached_table.choose(Table(), is_away=True)
        told = Table()
        told.fold(replace(SNAPSHOT, awaited=frozenset({"west"})))
        chosen = cached_table.choose(told, is_away=False)
        assert chosen is told
        assert told.leases == {imported.name: imported}


def test_nothing_is_remembered_without_a_file_or_of_another_node(tmp_path: Path) -> None:
    with StateFile(str(tmp_path), "dataplane") as file:
        assert CachedTable("n1", file).choose(Table(), is_away=True) is None
        file.put([written(node="n2")])
        found = CachedTable("n1", file)
        assert (found.own, found.previous_subnets, found.choose(Table(), is_away=True)) == (None, (), None)


def test_leases_that_cannot_be_read_are_nothing_and_stay_beside(tmp_path: Path) -> None:
    pieces = [*table_records(NETWORK, PEERS, None), Record.of_bytes("lease/none", b"\xff\xff")]
    with StateFile(str(tmp_path), "dataplane") as file:
        file.put(encode("dataplane", "n1", OWN, (), pieces))
        before = file.path.read_bytes()
        assert CachedTable("n1", file).choose(Table(), is_away=True) is None
        assert file.put([written()])
        assert file.path.with_name("dataplane.state.refused").read_bytes() == before


@pytest.mark.parametrize(
    ("expires_at", "now", "said"),
    [
        (None, 50.0, ""),
        (1_000.0, 999.0, ""),
        (1_000.0, 1_000.0, "the lease has expired"),
        (1_000.0, 50.0, "the clock is behind"),
    ],
)
def test_an_own_lease_is_ours_until_it_runs_out_by_a_clock_that_can_be_right(
    expires_at: float | None, now: float, said: str
) -> None:
    assert stale_reason(OWN.with_time(expires_at), confirmed_at=100.0, now=now).startswith(said)
    assert bool(said) == bool(stale_reason(OWN.with_time(expires_at), confirmed_at=100.0, now=now))
