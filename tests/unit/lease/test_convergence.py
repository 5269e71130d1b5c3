"""Who has which change, and how long it took: by examples, and against a model that counts everybody."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.stores.reporting import FAILED, Scene


@pytest.fixture
async def a(scene: Scene) -> Scene:
    """Node a has the first snapshot."""
    await scene.place("a", 0)
    scene.observed()
    return scene


@pytest.fixture
async def ab(a: Scene) -> Scene:
    """So has node b."""
    await a.place("b", 0)
    return a


async def test_a_change_has_converged_when_the_last_connected_node_has_it(ab: Scene) -> None:
    await ab.place("c", 0)
    change = ab.enter()
    await ab.place("a", change, after=0.1)
    await ab.place("b", change, after=0.2)
    assert not await ab.is_converged(change)
    assert await ab.lacking(change) == ["c"]
    await ab.place("c", change, after=0.3)
    assert await ab.is_converged(change)
    assert ab.observed() == (1, 0.6)


async def test_how_long_it_took_stays_as_it_was_while_time_and_later_changes_go_on(a: Scene) -> None:
    first = a.enter()
    await a.place("a", first, after=0.5)
    second = a.enter()
    a.now += 7
    assert [await a.elapsed(first), await a.elapsed(second)] == [0.5, 7]
    await a.place("a", second)
    a.now += 9
    assert await a.elapsed(second) == 7


async def test_each_change_of_a_burst_is_observed_once_by_one_report_of_the_last(ab: Scene) -> None:
    for _ in range(3):
        ab.enter(after=0.25)
    await ab.place("a", 3)
    await ab.place("b", 2, after=0.25)
    assert ab.observed() == (2, 0.75 + 0.5)
    await ab.place("b", 3, after=0.25)
    assert ab.observed() == (1, 0.5)


async def test_a_report_that_comes_late_does_not_make_the_change_slow(ab: Scene) -> None:
    change = ab.enter()
    await ab.place("b", change, after=5, ago=5 - 0.25)
    await ab.place("a", change, ago=5 - 0.125)
    assert ab.observed() == (1, 0.25), "the later of the two"
    assert await ab.elapsed(change) == 0.25


async def test_no_report_makes_a_change_faster_than_it_came(a: Scene) -> None:
    change = a.enter()
    await a.place("a", change, ago=50_000)
    assert a.observed() == (1, 0.0)
    assert await a.elapsed(change) == 0.0


async def test_the_changes_that_come_together_enter_together(a: Scene) -> None:
    a.now += 1
    for _ in range(3):
        a.enter(after=0)
    await a.place("a", 1, after=0.25)
    await a.place("a", 3, after=0.25)
    assert a.observed() == (3, 1.25)
    assert [await a.elapsed(position) for position in (1, 2, 3)] == [0.25, 0.5, 0.5]


async def test_a_node_that_is_cut_off_keeps_nobody_waiting_and_nobody_connected_is_no_convergence(ab: Scene) -> None:
    change = ab.enter()
    await ab.place("a", change)
    await ab.leave("b")
    assert await ab.is_converged(change)
    assert await ab.lacking(change) == []
    await ab.leave("a")
    assert not await ab.is_converged(change)
    assert await ab.elapsed(change) == 0.0


async def test_what_entered_while_nobody_was_connected_is_not_measured(scene: Scene) -> None:
    scene.enter()
    scene.enter(after=3600)
    await scene.place("a", -1)
    await scene.place("a", 2, after=5)
    assert scene.observed() == (0, 0.0)
    await scene.place("a", scene.enter(), after=0.5)
    assert scene.observed() == (1, 0.5)


async def test_a_node_that_comes_later_is_waited_for_but_not_measured_again(a: Scene) -> None:
    change = a.enter()
    await a.place("a", change, after=0.5)
    await a.place("b", -1, after=60)
    assert await a.lacking(change) == ["b"]
    assert await a.elapsed(change) == 60.5
    await a.place("b", change, after=1)
    assert await a.is_converged(change)
    assert await a.elapsed(change) == 0.5
    assert a.observed() == (1, 0.5)


async def test_a_lease_that_a_node_could_not_program_is_no_convergence_until_it_could(ab: Scene) -> None:
    change = ab.enter()
    await ab.place("a", change)
    assert await ab.say("b", f"e:{change}", FAILED)
    assert not await ab.is_converged(change)
    assert await ab.lacking(change) == []
    await ab.place("b", change)
    assert await ab.is_converged(change)


async def test_a_time_that_is_forgotten_counts_as_the_oldest_that_is_known(forgetful: Scene) -> None:
    await forgetful.place("a", 0)
    forgetful.observed()
    for _ in range(9):
        forgetful.enter(after=1)
    await forgetful.place("a", 9, after=1)
    assert forgetful.observed() == (9, 7 * 3 + 2 + 1)


nodes = st.sampled_from("abcd")
actions = st.one_of(st.just("enter"), nodes, st.tuples(nodes, st.integers(-1, 30)))
"""A change; a node that leaves; a node that is at a position."""


@given(st.lists(actions, max_size=60))
def test_it_agrees_with_a_model_that_looks_at_everybody(script: list[str | tuple[str, int]]) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        asyncio.run(play(monkeypatch, script))


async def play(monkeypatch: pytest.MonkeyPatch, script: list[str | tuple[str, int]]) -> None:
    scene = Scene(monkeypatch)
    at, awaited, converged, measured = dict[str, int](), set[int](), -1, 0
    for action in script:
        match action:
            case "enter":
                position = scene.enter()
                if at:
                    awaited.add(position)
            case (node, position):
                at[node] = min(position, scene.last)
                await scene.place(node, at[node])
            case node if node in at:
                del at[node]
                await scene.leave(node)
        converged = max(converged, min(at.values(), default=-1))
        if not at:
            awaited = {position for position in awaited if position <= converged}
        for position in range(scene.last + 1):
            answer = await scene.converged(position)
            assert answer.converged == (bool(at) and min(at.values()) >= position)
            assert list(answer.nodes_pending) == sorted(node for node, place in at.items() if place < position)
        measured += scene.observed()[0]
        assert measured == sum(position <= converged for position in awaited)
