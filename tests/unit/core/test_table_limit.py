"""How many leases a table may have: those in force stay, and what a snapshot added that cannot end goes.

Regression tests of hole 4.
"""

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.table import Removed, Step, Table, Upserted
from tests.examples.leases import make_lease

MOST = 20
CHANGES = st.lists(
    st.integers(1, 200).map(lambda n: Upserted(make_lease(n))) | st.integers(1, 200).map(lambda n: Removed(f"{n}")),
    max_size=30,
)
STEPS = st.builds(lambda reset, synced, changes: Step(reset, tuple(changes), synced=synced, cursor="1" * synced),
                  st.booleans(), st.booleans(), CHANGES)  # fmt: skip


@given(steps=st.lists(STEPS, max_size=30))
def test_a_table_never_has_more_than_twice_what_it_may(steps: list[Step]) -> None:
    table = Table()
    for step in steps:
        if table.has_room(step, MOST):
            table.fold(step)
        else:
            table.withdraw()
        assert len(table.leases) <= 3 * MOST
        if table.is_complete:
            assert len(table.leases) <= MOST


def test_what_was_in_force_is_there_after_a_snapshot_that_has_too_much() -> None:
    table = Table()
    kept = [make_lease(number) for number in range(1, 11)]
    table.fold(Step(reset=True, changes=tuple(map(Upserted, kept)), synced=True, cursor="a"))
    table.fold(Step(reset=True))
    table.fold(Step(changes=tuple(Upserted(make_lease(number)) for number in range(5, 20))))
    too_much = Step(changes=tuple(Upserted(make_lease(number)) for number in range(30, 45)))
    assert not table.has_room(too_much, MOST)
    assert len(table.withdraw()) == 9
    assert set(table.leases) == {lease.name for lease in kept}
    table.fold(Step(reset=True, changes=tuple(map(Upserted, kept[:3])), synced=True, cursor="b"))
    assert set(table.leases) == {lease.name for lease in kept[:3]}


def test_removals_of_what_was_never_there_make_no_room() -> None:
    table = Table()
    table.fold(
        Step(reset=True, changes=tuple(Upserted(make_lease(n)) for n in range(1, 16)), synced=True, cursor="a")
    )
    table.fold(Step(reset=True, changes=tuple(Removed(f"nothing-{n}") for n in range(20))))
    table.fold(Step(changes=tuple(Upserted(make_lease(number)) for number in range(1, 16))))
    assert not table.has_room(Step(changes=tuple(Upserted(make_lease(n)) for n in range(20, 35)), synced=True), MOST)
