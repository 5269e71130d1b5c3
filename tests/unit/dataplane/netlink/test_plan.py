"""`desired - actual`, on values with keys."""

from collections.abc import Set
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.dataplane.netlink.objects import Plan, plan


@dataclass(frozen=True)
class Thing:
    """What the kernel holds: one value for each key."""

    key: str
    value: int = 0


def kernel(things: Set[Thing]) -> dict[str, Thing]:
    """As the kernel sees them; a kernel has no two with one key."""
    return {thing.key: thing for thing in things}


def apply(changes: Plan[Thing], actual: Set[Thing]) -> frozenset[Thing]:
    """Adds or replaces, then deletes by key, as netlink does."""
    held = kernel(actual)
    for thing in changes.put:
        held[thing.key] = thing
    for thing in changes.delete:
        del held[thing.key]
    return frozenset(held.values())


states = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 2), max_size=6).map(
    lambda held: frozenset(Thing(key, value) for key, value in held.items())
)


@given(states, states)
def test_applying_a_plan_gives_what_is_desired(actual: frozenset[Thing], desired: frozenset[Thing]) -> None:
    assert apply(plan(actual, desired), actual) == desired


@given(states, states)
def test_without_purge_everything_desired_is_there_and_nothing_is_deleted(
    actual: frozenset[Thing], desired: frozenset[Thing]
) -> None:
    changes = plan(actual, desired, purge=False)
    assert changes.delete == frozenset()
    after = apply(changes, actual)
    assert desired <= after
    assert set(kernel(after)) == {*kernel(actual), *kernel(desired)}


@given(states, states, st.booleans())
def test_a_plan_does_nothing_needless(actual: frozenset[Thing], desired: frozenset[Thing], purge: bool) -> None:
    changes = plan(actual, desired, purge=purge)
    assert changes.put == desired - actual
    assert changes.delete <= actual - desired
    assert not set(kernel(changes.put)) & set(kernel(changes.delete))
    assert len(changes) == len(changes.put) + len(changes.delete)
    assert not plan(apply(changes, actual), desired, purge=purge)


@given(states, states, st.sets(st.sampled_from("abcdef")))
def test_a_plan_for_some_slots_is_that_part_of_the_plan_for_all(
    actual: frozenset[Thing], desired: frozenset[Thing], some: set[str]
) -> None:
    def part(things: frozenset[Thing]) -> frozenset[Thing]:
        return frozenset(thing for thing in things if thing.key in some)

    whole, partial = plan(actual, desired), plan(part(actual), part(desired))
    assert (partial.put, partial.delete) == (part(whole.put), part(whole.delete))


def test_a_value_whose_slot_is_wanted_for_another_is_replaced_and_not_deleted() -> None:
    changes = plan({Thing("a", 0), Thing("b", 0)}, {Thing("a", 1)})
    assert changes == Plan(put=frozenset({Thing("a", 1)}), delete=frozenset({Thing("b", 0)}))


def test_a_value_that_is_there_is_left_alone() -> None:
    changes = plan({Thing("a", 0)}, {Thing("a", 0)})
    assert changes == Plan(frozenset(), frozenset())
    assert len(changes) == 0
    assert not changes


def test_everything_goes_when_nothing_is_desired_unless_purge_is_off() -> None:
    actual = {Thing("a"), Thing("b")}
    assert plan(actual, set()).delete == actual
    assert not plan(actual, set(), purge=False)
