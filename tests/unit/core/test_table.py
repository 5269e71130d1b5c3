"""The stream of steps, and the fold that rebuilds the server's table from it."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import (
    Change,
    Removed,
    Step,
    StoreStatus,
    Table,
    Upserted,
    changes_between,
)
from flannelette.services.core.network import parse_network

NAMES = ("a", "b", "c", "d", "e")
NETWORK = parse_network('{"Network": "10.5.0.0/16", "Backend": {"Type": "vxlan"}}')
OTHER_NETWORK = parse_network('{"Network": "10.6.0.0/16", "Backend": {"Type": "vxlan"}}')


def lease(name: str, value: int = 0) -> Lease:
    return Lease(name, f"node-{value}", ())


def leases(**values: int) -> dict[str, Lease]:
    return {name: lease(name, value) for name, value in values.items()}


def up(name: str, value: int = 0) -> Upserted:
    return Upserted(lease(name, value))


def synced_table(**values: int) -> Table:
    table = Table()
    changes = tuple(up(name, value) for name, value in values.items())
    table.fold(Step(reset=True, changes=changes, network=NETWORK, synced=True, cursor="1"))
    return table


tables = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2)).map(lambda values: leases(**values))
changes = st.one_of(
    st.builds(up, st.sampled_from(NAMES), st.integers(0, 2)), st.builds(Removed, st.sampled_from(NAMES))
)


@dataclass
class Server:
    """A lease service as its protocol describes it: a table, and what it was at every cursor it gave out."""

    leases: dict[str, Lease] = field(default_factory=dict)
    versions: dict[str, dict[str, Lease]] = field(default_factory=dict)

    def cursor(self) -> str:
        cursor = str(len(self.versions))
        self.versions[cursor] = dict(self.leases)
        return cursor

    def change(self, changes: tuple[Change, ...]) -> Step:
        for change in changes:
            if isinstance(change, Upserted):
                self.leases[change.lease.name] = change.lease
            else:
                self.leases.pop(change.name, None)
        return Step(changes=changes, synced=True, cursor=self.cursor())

    def snapshot(self, size: int) -> list[Step]:
        """The table in chunks; the first has `reset`, the last is synced, each tells a cursor."""
        everything = [Upserted(lease) for lease in self.leases.values()]
        chunks = [tuple(everything[i : i + size]) for i in range(0, len(everything), size)] or [()]
        last, cursor = len(chunks) - 1, self.cursor()
        return [Step(reset=i == 0, changes=chunk, synced=i == last, cursor=cursor) for i, chunk in enumerate(chunks)]

    def answer(self, cursor: str, size: int) -> list[Step]:
        """What a client gets that comes back with this cursor."""
        if cursor not in self.versions:
            return self.snapshot(size)
        missed = changes_between(self.versions[cursor], self.leases)
        return [Step(changes=missed, synced=True, cursor=self.cursor())]


def fold_and_check(table: Table, step: Step, kept: set[str]) -> None:
    """Folds; `kept` are the names that may not go before the step is synced."""
    before, was_synced = dict(table.leases), table.synced
    touched = table.fold(step)
    named = {change.lease.name if isinstance(change, Upserted) else change.name for change in step.changes}
    assert {name for name in {*before, *table.leases} if before.get(name) != table.leases.get(name)} <= touched
    assert touched <= named | set(before)
    assert step.synced or kept <= set(table.leases)
    assert table.synced == (was_synced or step.synced)


@given(st.data())
def test_snapshots_deltas_and_broken_streams_in_any_sequence_give_the_servers_table(data: st.DataObject) -> None:
    server, table, connected = Server(data.draw(tables)), Table(), False
    for event in data.draw(st.lists(st.sampled_from(["change", "bookmark", "reset", "break"]), max_size=12)):
        steps = []
        size, cut = data.draw(st.integers(1, 3)), data.draw(st.integers(0, 5))
        if not connected:
            steps = server.answer(table.cursor, size)
        elif event == "reset":
            steps = server.snapshot(size)
        elif event == "bookmark":
            steps = [server.change(())]
        elif event == "change":
            steps = [server.change(tuple(data.draw(st.lists(changes, max_size=6))))]
        connected = event != "break"
        kept = set(table.leases)
        for step in steps if connected else steps[:cut]:
            fold_and_check(table, step, kept)
        if connected:
            assert table.leases == server.leases
        else:
            server.change(tuple(data.draw(st.lists(changes, max_size=3))))


@given(tables, tables)
def test_the_changes_between_two_tables_fold_one_into_the_other(old: dict[str, Lease], new: dict[str, Lease]) -> None:
    table = Table(leases=dict(old), synced=True, cursor="1")
    between = changes_between(old, new)
    touched = table.fold(Step(changes=between, synced=True))
    assert table.leases == new
    assert touched == {name for name in {*old, *new} if old.get(name) != new.get(name)}
    assert len(between) == len(touched)


@given(tables, tables, st.integers(1, 3))
def test_a_later_reset_replaces_the_table_and_removes_nothing_before_it_is_synced(
    old: dict[str, Lease], new: dict[str, Lease], size: int
) -> None:
    table = Table()
    for step in Server(old).snapshot(size):
        table.fold(step)
    *staged, last = Server(new).snapshot(size)
    for step in staged:
        table.fold(step)
        assert set(old) <= set(table.leases)
        assert table.synced
    touched = table.fold(last)
    assert table.leases == new
    assert set(old) - set(new) <= touched


def test_removals_come_before_upserts_so_that_a_subnet_can_change_its_name() -> None:
    between = changes_between(leases(a=0, b=0, c=0), leases(b=1, c=0, d=0))
    assert between == (Removed("a"), up("b", 1), up("d"))


def test_a_table_starts_empty_and_unsynced() -> None:
    table = Table()
    assert (table.leases, table.network, table.synced, table.cursor) == ({}, None, False, "")
    assert table.fold(Step()) == frozenset()
    assert not table.synced


def test_the_changes_of_a_step_are_applied_in_their_order() -> None:
    table = synced_table(a=0)
    table.fold(Step(changes=(Removed("a"), up("a", 1), up("b"), Removed("b"), up("c"), up("c", 2)), synced=True))
    assert table.leases == leases(a=1, c=2)


def test_a_lease_that_is_removed_and_comes_back_the_same_is_touched() -> None:
    table = synced_table(a=0)
    assert table.fold(Step(changes=(Removed("a"), up("a")), synced=True)) == {"a"}
    assert table.leases == leases(a=0)


def test_only_what_changes_is_touched() -> None:
    table = synced_table(a=0, b=0)
    assert table.fold(Step(changes=(up("a"), up("b", 1), Removed("x")), synced=True)) == {"b"}


def test_upserts_of_a_reset_are_there_at_once_and_the_old_leases_stay_until_it_is_synced() -> None:
    table = synced_table(a=0, b=0, c=0)
    assert table.fold(Step(reset=True, changes=(up("a", 1), up("d")))) == {"a", "d"}
    assert table.leases == leases(a=1, b=0, c=0, d=0)
    assert table.fold(Step(changes=(up("c"),))) == frozenset()
    assert table.fold(Step(synced=True)) == {"b"}
    assert table.leases == leases(a=1, c=0, d=0)


def test_a_removal_inside_a_reset_waits_for_it_to_be_synced_as_well() -> None:
    table = synced_table(a=0, b=0)
    assert table.fold(Step(reset=True, changes=(up("a"), Removed("a"), Removed("b"), up("b", 1)))) == {"b"}
    assert table.leases == leases(a=0, b=1)
    assert table.fold(Step(changes=(Removed("b"), Removed("x")))) == frozenset()
    assert table.fold(Step(synced=True)) == {"a", "b"}
    assert table.leases == {}


def test_an_old_lease_that_a_second_reset_brings_back_stays() -> None:
    table = synced_table(a=0, b=0)
    table.fold(Step(reset=True, changes=(up("a", 1),)))
    table.fold(Step(reset=True, changes=(up("b", 1),)))
    assert table.leases == leases(a=1, b=1)
    assert table.fold(Step(synced=True)) == {"a"}
    assert table.leases == leases(b=1)


def test_an_empty_message_never_means_that_there_are_no_leases() -> None:
    table = synced_table(a=0)
    for step in (Step(), Step(synced=True), Step(synced=True, cursor="2"), Step(reset=True)):
        assert table.fold(step) == frozenset()
        assert table.leases == leases(a=0)


def test_only_a_reset_that_is_synced_with_nothing_between_means_that_there_are_no_leases() -> None:
    table = synced_table(a=0)
    assert table.fold(Step(reset=True, synced=True)) == {"a"}
    assert table.leases == {}


def test_a_deleted_lease_does_not_come_back_after_a_reset_confirmed_it() -> None:
    table = synced_table(a=0)
    table.fold(Step(reset=True, changes=(up("a"),), synced=True))
    table.fold(Step(changes=(Removed("a"),), synced=True))
    assert table.fold(Step(synced=True)) == frozenset()
    assert table.leases == {}


# Where to resume


def test_the_cursor_is_the_last_one_of_a_synced_step() -> None:
    table = synced_table(a=0)
    assert table.cursor == "1"
    table.fold(Step(synced=True, cursor="2"))
    table.fold(Step(changes=(up("b"),), synced=True))
    assert table.cursor == "2"


def test_a_reset_that_breaks_off_is_asked_for_again_from_the_start() -> None:
    table = synced_table(a=0, b=0)
    table.fold(Step(reset=True, changes=(up("a"),), cursor="7"))
    assert table.cursor == ""  # to resume anywhere would be to take b for gone
    table.fold(Step(reset=True, changes=(up("a"), up("b")), synced=True, cursor="8"))
    assert table.leases == leases(a=0, b=0)
    assert table.cursor == "8"


# Network and store


def test_the_last_good_network_stays_in_force_while_the_stored_one_is_wrong() -> None:
    table = synced_table()
    table.fold(Step(network_error="SubnetLen 33 does not suit", synced=True))
    assert (table.network, table.network_error) == (NETWORK, "SubnetLen 33 does not suit")
    table.fold(Step(synced=True))
    assert table.network_error == "SubnetLen 33 does not suit"
    table.fold(Step(network=OTHER_NETWORK, synced=True))
    assert (table.network, table.network_error) == (OTHER_NETWORK, "")


def test_a_network_and_its_error_in_one_step_are_the_last_good_one_and_why_it_is_not_the_stored_one() -> None:
    table = Table()
    table.fold(Step(reset=True, network=NETWORK, network_error="gone", synced=True))
    assert (table.network, table.network_error) == (NETWORK, "gone")


@pytest.mark.parametrize("connected", [True, False])
def test_the_stores_status_is_the_last_one_told(connected: bool) -> None:
    table = Table()
    status = StoreStatus("etcd", connected, "" if connected else "refused")
    table.fold(Step(store=status))
    table.fold(Step())
    assert table.store == status
    assert not table.synced
