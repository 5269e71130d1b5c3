"""Operators' choices for nodes: whoever is told the news knows what is chosen."""

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from services.core.choices import Choices, Chosen, ChosenAddress, choices_between
from services.core.table import Step, Table
from services.runtime.wire import step_from_bytes, step_to_bytes

V4 = ChosenAddress(4, "192.168.0.7", "annotation a/node-public-ip")
V6 = ChosenAddress(6, "fd00::7", "annotation a/node-public-ipv6")

chosen = st.sampled_from([(V4,), (V6,), (V4, V6), (ChosenAddress(4, "no address", "a note"),)])
states = st.dictionaries(st.sampled_from("abc"), chosen)


@given(st.lists(states, min_size=1, max_size=6))
def test_whoever_is_told_all_news_over_the_wire_knows_what_is_chosen(script: list[Mapping[str, Chosen]]) -> None:
    table = Table(choices={"a": (V6,), "gone": (V4,)})  # of a stream before
    table.fold(step_from_bytes(step_to_bytes(Step(choices=Choices(script[0], complete=True)))))
    assert table.choices == script[0]
    for before, now in pairwise(script):
        news, revision = choices_between(before, now), table.revision
        assert (news is None) == (before == now)
        if news is not None:
            assert table.fold(step_from_bytes(step_to_bytes(Step(choices=news)))) == frozenset()
        assert table.choices == now
        assert (table.revision != revision) == (before != now), "so that what changes is remembered"


def test_only_nodes_of_which_there_is_news_are_told() -> None:
    before: Mapping[str, Chosen] = {"a": (V4,), "b": (V4,), "c": (V4,)}
    assert choices_between(before, {"a": (V4,), "b": (V6,)}) == Choices({"c": (), "b": (V6,)})
    assert choices_between(before, before) is None


def test_what_was_chosen_stays_while_a_new_table_is_staged() -> None:
    table = Table()
    table.fold(Step(choices=Choices({"a": (V4,)}, complete=True)))
    table.fold(Step(reset=True))
    table.fold(Step(synced=True))
    assert table.choices == {"a": (V4,)}
