"""Whose turn it is."""

from collections import Counter
from itertools import pairwise

import pytest

from flannelette.services.dataplane.probes.prober import Schedule


def simulated(
    schedule: Schedule[int], seconds: float, silent: frozenset[int] = frozenset()
) -> list[tuple[float, int]]:
    """The turns of so many seconds; each key of `silent` is in doubt after its turn."""
    now, turns = 0.0, []
    while (at := schedule.next_at()) is not None and max(at, now) < seconds:
        now = max(at, now)
        key = schedule.take(now)
        assert key is not None
        turns.append((now, key))
        if key in silent:
            schedule.doubt(key, now + 1)
    return turns


@pytest.mark.parametrize(("keys", "rate"), [(3, 1.0), (100, 1.0), (5000, 5.0)])
def test_the_rate_is_held_and_everybody_has_turns(keys: int, rate: float) -> None:
    schedule = Schedule[int](rate)
    schedule.keep(range(keys), 0.0)
    seconds = 3 * max(10.0, keys / rate)
    turns = simulated(schedule, seconds)
    assert all(b - a >= 1 / rate - 1e-9 for (a, _), (b, _) in pairwise(turns))
    counts = Counter(key for _, key in turns)
    assert set(counts.values()) == {3}
    assert len(counts) == keys


def test_one_in_doubt_has_its_turn_soon_and_the_others_keep_theirs() -> None:
    schedule = Schedule[int](1.0)
    schedule.keep(range(100), 0.0)
    turns = simulated(schedule, 200.0, silent=frozenset({0}))
    counts = Counter(key for _, key in turns)
    assert counts[0] > 50
    assert all(counts[key] >= 1 for key in range(100))


def test_many_in_doubt_get_half_of_the_turns() -> None:
    schedule = Schedule[int](1.0)
    schedule.keep(range(100), 0.0)
    turns = simulated(schedule, 400.0, silent=frozenset(range(50)))
    counts = Counter(key < 50 for _, key in turns)
    assert all(any(key == each for _, key in turns) for each in range(100))
    assert counts[False] > 80


def test_a_key_that_left_has_no_turn_and_one_that_came_has_its_own_at_once() -> None:
    schedule = Schedule[str](1000.0)
    schedule.keep(["a", "b"], 0.0)
    assert (schedule.take(0.0), schedule.take(0.1)) == ("a", "b")
    schedule.keep(["b", "c"], 0.2)
    schedule.doubt("a", 0.2)
    assert schedule.take(0.2) == "c"
    assert schedule.take(9.0) is None
    assert schedule.take(10.2) == "b"


def test_nobody_is_due_without_keys() -> None:
    schedule = Schedule[str](1.0)
    assert schedule.next_at() is None
    assert schedule.take(0.0) is None
