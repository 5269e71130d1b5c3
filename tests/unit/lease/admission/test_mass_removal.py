"""Which removals are believed at once, and which only when the store says it twice."""

import pytest

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Upserted
from tests.examples.leases import SMALL, by_name, make_lease
from tests.stores.guarded_table import World, fold, gone, name


def test_a_deletion_of_all_leases_is_held_back() -> None:
    """A regression test of defect 1 of flannel v0.28."""
    world = World(20)
    assert world.change(*gone(*range(1, 21))) == set()
    assert len(world.table) == len(world.held) == 20


def test_an_empty_listing_is_held_back() -> None:
    """A regression test of defect 1 of flannel v0.28."""
    world = World(20)
    assert world.relist() == set()
    assert len(world.table) == len(world.held) == 20


def test_what_is_held_goes_when_a_second_listing_says_so() -> None:
    world = World(20)
    world.relist()
    world.confirm()
    assert world.table == {}
    assert world.held == set()


def test_a_listing_that_was_asked_for_before_confirms_nothing() -> None:
    world = World(20)
    world.relist()
    world.confirm(asked_at=world.now - 1)
    assert len(world.table) == 20


def test_what_the_second_listing_has_is_kept_until_the_store_tells_it() -> None:
    world = World(20)
    world.relist()
    world.store = by_name(make_lease(1))
    world.confirm()
    assert set(world.table) == world.held == {name(1)}
    world.change(Upserted(make_lease(1)))
    assert set(world.table) == {name(1)}
    assert world.held == set()


def test_an_operator_confirms_at_once() -> None:
    world = World(20)
    world.relist()
    assert {removed.name for removed in world.guard.confirm_all()} == set(world.table)
    assert world.held == set()
    assert world.guard.confirm_all() == ()


def test_up_to_the_share_passes_at_once() -> None:
    world = World(20)
    assert len(world.change(*gone(*range(1, 11)))) == 10
    assert world.held == set()


def test_one_more_than_the_share_is_held_and_with_it_all_that_came_together() -> None:
    world = World(20)
    assert world.change(*gone(*range(1, 12))) == set()
    assert len(world.held) == 11


@pytest.mark.parametrize("leases", [1, 2, 3, 9])
def test_a_single_lease_goes_at_once_however_few_there_are(leases: int) -> None:
    """A regression test of hole 8."""
    world = World(leases)
    assert world.change(*gone(1)) == {name(1)}
    assert world.held == set()


def test_of_a_store_that_was_replaced_not_even_a_single_lease_is_believed_to_have_gone() -> None:
    world = World(leases=4)
    there = [make_lease(number) for number in (1, 2, 3)]
    assert world.relist(*there, is_other_history=True) == set()
    assert world.held == {name(4)}, "its node has not taken it again yet"
    world.change(Upserted(make_lease(4)))
    assert world.held == set()
    assert world.relist(*there) == {name(4)}, "the same history: its node left"


@pytest.mark.parametrize(("leases", "at_once"), [(2, 1), (3, 1), (4, 2), (9, 4)])
def test_all_leases_never_go_together_however_few_there_are(leases: int, at_once: int) -> None:
    """A regression test of hole 8."""
    assert World(leases).relist() == set()
    world = World(leases)
    assert world.change(*gone(*range(1, leases + 1))) == set()
    assert len(world.held) == leases
    world = World(leases)
    left = [len(world.change(*gone(number))) for number in range(1, leases + 1)]
    assert left == [1] * at_once + [0] * (leases - at_once)


def test_a_small_cluster_that_shrinks_within_the_share_shrinks_at_once() -> None:
    """A regression test of hole 8."""
    world = World(9)
    assert len(world.change(*gone(1, 2, 3))) == 3
    world.pass_window()
    assert len(world.change(*gone(4, 5, 6))) == 3


def test_all_but_one_are_held_until_a_second_listing() -> None:
    """A regression test of hole 8."""
    world = World(4)
    assert world.change(*gone(2, 3, 4)) == set()
    world.confirm()
    assert set(world.table) == {name(1)}


def test_removals_one_by_one_within_two_seconds_count_together() -> None:
    world = World(20)
    left = [len(world.change(*gone(number))) for number in range(1, 21)]
    assert left == [1] * 10 + [0] * 10
    assert len(world.held) == 10


def test_a_slow_trickle_is_no_burst() -> None:
    world = World(30)
    for number in range(1, 31):
        world.pass_window()
        world.change(*gone(number))
    assert world.table == {}


def test_what_was_confirmed_does_not_count_against_the_next_removal() -> None:
    world = World(40)
    world.change(*gone(*range(1, 31)))
    world.confirm()
    assert len(world.change(*gone(31, 32))) == 2


def test_while_removals_are_held_everything_else_goes_on() -> None:
    world = World(20)
    world.relist()
    world.change(Upserted(make_lease(99)))
    world.tells(network=SMALL)
    assert name(99) in world.table
    assert world.network == SMALL
    assert len(world.held) == 20
    world.confirm()
    assert set(world.table) == {name(99)}


def test_a_single_removal_while_others_are_held_waits_with_them() -> None:
    world = World(20)
    world.change(*gone(*range(1, 16)))
    world.now += 10
    assert world.change(*gone(16)) == set()
    assert name(16) in world.held


def test_a_lease_that_comes_back_or_changes_is_held_no_longer() -> None:
    world = World(20)
    world.relist()
    world.change(Upserted(make_lease(1)), Upserted(make_lease(2, version=2)))
    assert world.table[name(2)] == make_lease(2, version=2)
    assert len(world.held) == 18
    world.relist(make_lease(1), make_lease(3))
    assert name(3) not in world.held
    world.confirm()
    assert set(world.table) == {name(1), name(3)}


def test_the_store_that_has_them_all_again_ends_it() -> None:
    world = World(20)
    leases = list(world.store.values())
    world.relist()
    world.relist(*leases)
    assert world.held == set()
    assert len(world.table) == 20


def test_a_lease_whose_subnet_another_takes_is_replaced_and_not_lost() -> None:
    world = World(20)
    others = [Lease(f"new{n}", f"node{n}", make_lease(n).subnets) for n in range(1, 21)]
    assert len(world.relist(*others)) == 20
    assert set(world.table) == {other.name for other in others}
    world = World(20)
    world.relist()
    assert world.change(Upserted(others[0])) == {name(1)}
    assert len(world.held) == 19


def test_what_somebody_asked_for_goes_at_once_however_much_it_is() -> None:
    world = World(20)
    assert world.release(*range(1, 21)) == set(map(name, range(1, 21)))
    assert (world.table, world.held) == ({}, set())


def test_what_somebody_asked_for_does_not_count_against_what_else_goes() -> None:
    world = World(40)
    world.release(*range(1, 21))
    assert len(world.change(*gone(*range(21, 31)))) == 10
    assert world.change(*gone(31)) == set()


def test_what_is_lost_beside_something_that_somebody_asked_for_is_held() -> None:
    world = World(40)
    changes = gone(*range(1, 31))
    fold(world.store, changes)
    assert world.tells(*changes, released=frozenset({name(1), name(2)})) == {name(1), name(2)}
    assert world.held == set(map(name, range(3, 31)))


def test_what_is_held_already_goes_when_somebody_asks_for_it() -> None:
    world = World(20)
    world.relist()
    assert world.tells(released=frozenset({name(7), "unknown"})) == {name(7)}
    assert len(world.held) == 19


def test_a_lease_that_is_there_again_stays_whoever_asked_for_its_end() -> None:
    world = World(20)
    assert world.tells(*gone(1), Upserted(make_lease(1)), released=frozenset({name(1)})) == set()
    assert (len(world.table), world.held) == (20, set())


def test_the_first_snapshot_has_nothing_to_compare_with() -> None:
    world = World()
    world.relist(*(make_lease(n) for n in range(1, 30)))
    assert len(world.table) == 29
    assert World().relist() == set()


def test_a_share_of_all_switches_it_off() -> None:
    world = World(20, share=1)
    assert len(world.relist()) == 20
