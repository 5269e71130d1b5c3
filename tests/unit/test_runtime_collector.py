"""The collector of cycles, while ten thousand leases come in."""

import gc

import pytest

from services.runtime.collector import making


class Cycle:
    """Garbage that only the collector finds, once nobody has it."""

    def __init__(self) -> None:
        self.itself = self


def test_what_is_much_is_old_at_once() -> None:
    with making(1000):
        assert not gc.isenabled()
        made = [Cycle() for _ in range(10)]
    assert gc.isenabled()
    assert gc.get_freeze_count() == 0
    old = set(map(id, gc.get_objects(generation=2)))
    assert old.issuperset(map(id, made))


def test_what_is_little_is_left_to_the_collector() -> None:
    with making(1):
        assert gc.isenabled()


def test_a_cycle_among_much_goes_with_the_next_full_collection() -> None:
    with making(1000):
        Cycle()
    gc.collect()
    assert not any(isinstance(found, Cycle) for found in gc.get_objects())


def test_who_fails_in_the_middle_leaves_the_collector_running() -> None:
    with pytest.raises(ValueError, match="bad"), making(1000), making(1000):
        raise ValueError("bad")
    assert gc.isenabled()
