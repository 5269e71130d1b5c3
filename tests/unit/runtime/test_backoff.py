"""The pauses of a loop that tries again."""

import pytest

from flannelette.services.runtime.backoff import Backoff, jittered


def test_pauses_double_up_to_the_longest_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _, longest: longest)
    pauses = Backoff(0.1, 0.5)
    assert [pauses.next() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_after_a_reset_they_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _, longest: longest)
    pauses = Backoff(1.0, 60.0)
    before = [pauses.next(), pauses.next(), pauses.upcoming]
    pauses.reset()
    assert (before, pauses.upcoming, pauses.next()) == ([1.0, 2.0, 4.0], 1.0, 1.0)


def test_a_limit_of_one_pause_holds_for_those_after_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _, longest: longest)
    pauses = Backoff(1.0, 30.0)
    assert [pauses.next(2.0) for _ in range(4)] == [1.0, 2.0, 2.0, 2.0]
    assert [pauses.next(30.0) for _ in range(4)] == [4.0, 8.0, 16.0, 30.0]


def test_jitter_takes_at_most_its_share() -> None:
    halves, wholes = ([jittered(8.0, share) for _ in range(2000)] for share in (0.5, 1.0))
    assert 4.0 <= min(halves) < 4.5 < 7.5 < max(halves) <= 8.0
    assert 0.0 <= min(wholes) < 0.5 < 7.5 < max(wholes) <= 8.0
    pauses = Backoff(8.0, 8.0, share=0.0)
    assert [pauses.next(), pauses.next()] == [8.0, 8.0]
