"""Who has which change, and how long it took: by examples, and against a model that counts everybody."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.progress import FailedLease, Progress
from flannelette.services.lease.progress import reports as module
from flannelette.services.lease.progress.reports import NOTHING_YET, Reports
from flannelette.services.lease.watch.log import ChangeLog, LogEntry


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Scene:
    """Reports with their log and clock, and what was observed."""

    clock: Clock = field(default_factory=Clock)
    observed: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = ChangeLog("e", 100, 1 << 20)
        self.reports = Reports(self.log, self.clock, self.clock, self.observed.append)

    def enter(self, count: int = 1, *, after: float = 1.0) -> int:
        """Changes in one step, some time after what was before them; returns the position of the last."""
        self.clock.now += after
        for _ in range(count if self.reports.last > NOTHING_YET else 0):
            self.log.append(LogEntry(()))
        self.reports.entered()
        return self.reports.last

    def place(
        self, node: str, position: int, *, after: float = 0.0, since: float | None = None, failing: bool = False
    ) -> None:
        """The node reports this position; it connects first, if it is not connected or was further before."""
        self.clock.now += after
        known = self.reports.connected.get(node)
        if known is None or position < known.position:
            self.reports.on_connect(node)
        if position > NOTHING_YET:
            failed = (FailedLease("10.0.7.0-24", "no route"),) if failing else ()
            assert self.reports.take(Progress(node, f"e:{position}", failed, len(failed), since))

    def lacking(self, position: int) -> list[str]:
        return sorted(node for node, progress in self.reports.connected.items() if progress.position < position)


def scene_with(*nodes: str) -> Scene:
    """The nodes have the first snapshot."""
    scene = Scene()
    scene.enter()
    for node in nodes:
        scene.place(node, 0)
    return scene


def test_a_change_has_converged_when_the_last_connected_node_has_it() -> None:
    scene = scene_with("a", "b", "c")
    change = scene.enter()
    scene.place("a", change, after=0.1)
    scene.place("b", change, after=0.2)
    assert not scene.reports.is_converged(change)
    assert scene.lacking(change) == ["c"]
    scene.place("c", change, after=0.3)
    assert scene.reports.is_converged(change)
    assert scene.observed == [0.6000000000000227]


def test_how_long_it_took_stays_as_it_was_while_time_and_later_changes_go_on() -> None:
    scene = scene_with("a")
    first = scene.enter()
    scene.place("a", first, after=0.5)
    second = scene.enter()
    scene.clock.now += 7
    assert scene.reports.elapsed(first) == 0.5
    assert scene.reports.elapsed(second) == 7
    scene.place("a", second)
    scene.clock.now += 9
    assert scene.reports.elapsed(second) == 7


def test_each_change_of_a_burst_is_observed_once_by_one_report_of_the_last() -> None:
    scene = scene_with("a", "b")
    for _ in range(3):
        scene.enter(after=0.25)
    scene.place("a", 3)
    scene.place("b", 2, after=0.25)
    assert scene.observed == [0.75, 0.5]
    scene.place("b", 3, after=0.25)
    assert scene.observed == [0.75, 0.5, 0.5]


def test_a_report_that_comes_late_does_not_make_the_change_slow() -> None:
    scene = scene_with("a", "b")
    change = scene.enter()
    entered = scene.clock.now
    scene.clock.now += 5
    scene.place("b", change, since=entered + 0.25)
    scene.place("a", change, since=entered + 0.125)
    assert scene.observed == [0.25], "the later of the two"
    assert scene.reports.elapsed(change) == 0.25


def test_no_report_makes_a_change_faster_than_it_came_or_slower_than_now() -> None:
    scene = scene_with("a")
    change = scene.enter()
    scene.place("a", change, since=0.0)
    assert scene.observed == [0.0]
    change = scene.enter()
    scene.place("a", change, since=scene.clock.now + 99)
    assert scene.observed == [0.0, 0.0]
    assert scene.reports.elapsed(change) == 0.0


def test_the_changes_of_a_large_step_enter_together() -> None:
    scene = scene_with("a")
    scene.clock.now += 1
    scene.enter(3, after=0)
    scene.place("a", 1, after=0.25)
    scene.place("a", 3, after=0.25)
    assert scene.observed == [0.25, 0.5, 0.5]
    assert [scene.reports.elapsed(position) for position in (1, 2, 3)] == [0.25, 0.5, 0.5]


def test_a_node_that_is_cut_off_keeps_nobody_waiting() -> None:
    scene = scene_with("a", "b")
    change = scene.enter()
    scene.place("a", change)
    scene.reports.on_disconnect("b")
    assert scene.reports.is_converged(change)
    assert scene.lacking(change) == []


def test_nobody_connected_is_no_convergence() -> None:
    scene = scene_with("a")
    scene.reports.on_disconnect("a")
    assert not scene.reports.is_converged(0)
    assert scene.reports.elapsed(0) == 0.0


def test_what_entered_while_nobody_was_connected_is_not_measured() -> None:
    scene = scene_with()
    scene.enter()
    scene.enter(after=3600)
    scene.place("a", NOTHING_YET)
    scene.place("a", 2, after=5)
    assert scene.observed == []
    change = scene.enter()
    scene.place("a", change, after=0.5)
    assert scene.observed == [0.5]


def test_a_node_that_comes_later_is_waited_for_but_not_measured_again() -> None:
    scene = scene_with("a")
    change = scene.enter()
    scene.place("a", change, after=0.5)
    scene.place("b", NOTHING_YET, after=60)
    assert scene.lacking(change) == ["b"]
    assert scene.reports.elapsed(change) == 60.5
    scene.place("b", change, after=1)
    assert scene.reports.is_converged(change)
    assert scene.reports.elapsed(change) == 0.5
    assert scene.observed == [0.5]


def test_a_lease_that_a_node_could_not_program_is_no_convergence_until_it_could() -> None:
    scene = scene_with("a", "b")
    change = scene.enter()
    scene.place("a", change)
    scene.place("b", change, failing=True)
    assert not scene.reports.is_converged(change)
    assert scene.lacking(change) == []
    scene.place("b", change)
    assert scene.reports.is_converged(change)


def test_a_time_that_is_forgotten_counts_as_the_oldest_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_TIMES", 3)
    scene = Scene()
    scene.place("a", NOTHING_YET)
    for _ in range(10):
        scene.enter(after=1)
    scene.place("a", 9, after=1)
    assert scene.observed == [3, 3, 3, 3, 3, 3, 3, 3, 2, 1]


nodes = st.sampled_from("abcd")
actions = st.one_of(st.just("enter"), nodes, st.tuples(nodes, st.integers(-1, 30)))
"""A change; a node that leaves; a node that is at a position."""


@given(st.lists(actions, max_size=80))
def test_it_agrees_with_a_model_that_looks_at_everybody(script: list[str | tuple[str, int]]) -> None:
    scene, at = scene_with(), dict[str, int]()
    awaited, converged = set[int](), -1
    for action in script:
        match action:
            case "enter":
                position = scene.enter()
                if at:
                    awaited.add(position)
            case (node, position):
                at[node] = min(position, scene.reports.last)
                scene.place(node, at[node])
            case node if node in at:
                del at[node]
                scene.reports.on_disconnect(node)
        converged = max(converged, min(at.values(), default=-1))
        if not at:
            awaited = {position for position in awaited if position <= converged}
        found = scene.reports
        for position in range(found.last + 1):
            assert found.is_converged(position) == (bool(at) and min(at.values()) >= position)
            assert scene.lacking(position) == sorted(node for node, place in at.items() if place < position)
        assert len(scene.observed) == sum(position <= converged for position in awaited)
