"""Whatever happens in a store: no burst of removals passes unconfirmed, and the table ends as the store."""

from collections.abc import Mapping, Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Removed, Upserted
from tests.examples.leases import make_lease
from tests.stores.guarded_table import SHARE, World, gone, name

WINDOW, SINGLE = 2.0, 1
"""Seconds within which removals count together, and how many of them pass of however few leases."""
numbers = st.integers(1, 24)
some = st.lists(
    st.one_of(st.builds(lambda n: Removed(name(n)), numbers), st.builds(lambda n: Upserted(make_lease(n)), numbers)),
    max_size=6,
)
purge = st.just("purge")
steps = st.one_of(some, some, purge, st.sets(numbers), st.sampled_from([0.5, 3.0, "confirm"]))


@example(0, [set(range(1, 6)), {13, 14, 15}, set(range(1, 13)), gone(1, 2), "purge", "confirm", []])
@given(st.integers(0, 24), st.lists(steps, max_size=20))
def test_no_burst_passes_unconfirmed_and_the_table_ends_as_the_store(known: int, happened: Sequence[object]) -> None:
    world = World(known)
    left: list[tuple[float, int, int]] = []  # when, how many, of how many
    for what in happened:
        before = len(world.table)
        if isinstance(what, float):
            world.now += what
        elif what == "confirm":
            world.confirm()
        else:
            if what == "purge":
                lost = world.change(*map(Removed, list(world.store)))
            elif isinstance(what, set | frozenset):
                lost = world.relist(*map(make_lease, what))
            else:
                assert isinstance(what, list)
                lost = world.change(*what)
            if lost:
                left.append((world.now, len(lost), before))
                assert_within_limits(left, world.now)
        assert_held_back(world.table, world.store, world.held)
    world.confirm()
    assert world.table == world.store


def assert_within_limits(left: Sequence[tuple[float, int, int]], now: float) -> None:
    """At the moment of the last ones that left: what is confirmed later takes nothing from what was known then."""
    recent = [(count, known) for when, count, known in left if when > now - WINDOW]
    together = sum(count for count, _ in recent)
    known = recent[-1][1] + sum(count for count, _ in recent[:-1])  # before the burst, or come with it
    assert together <= max(SINGLE, SHARE * known)


def assert_held_back(table: Mapping[str, Lease], store: Mapping[str, Lease], held: set[str]) -> None:
    assert set(table) - set(store) == held
    assert {n: lease for n, lease in table.items() if n not in held} == store
