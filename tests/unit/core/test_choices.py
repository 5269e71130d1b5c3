"""Operators' overrides for nodes: whoever is told the news knows what is chosen."""

from collections.abc import Mapping
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.leases.table import (
    NodeOverrides,
    PublicIpOverride,
    PublicIpOverrides,
    Step,
    Table,
    overrides_between,
)
from flannelette.services.runtime.lease.wire import step_from_bytes, step_to_bytes

V4 = PublicIpOverride(4, "192.168.0.7", "annotation a/node-public-ip")
V6 = PublicIpOverride(6, "fd00::7", "annotation a/node-public-ipv6")

chosen = st.sampled_from([(V4,), (V6,), (V4, V6), (PublicIpOverride(4, "no address", "a note"),)])
states = st.dictionaries(st.sampled_from("abc"), chosen)


@given(st.lists(states, min_size=1, max_size=6))
def test_whoever_is_told_all_news_over_the_wire_knows_what_is_chosen(
    script: list[Mapping[str, PublicIpOverrides]],
) -> None:
    table = Table(overrides={"a": (V6,), "gone": (V4,)})  # of a stream before
    table.fold(step_from_bytes(step_to_bytes(Step(overrides=NodeOverrides(script[0], complete=True)))))
    assert table.overrides == script[0]
    for before, now in pairwise(script):
        news, revision = overrides_between(before, now), table.revision
        assert (news is None) == (before == now)
        if news is not None:
            assert table.fold(step_from_bytes(step_to_bytes(Step(overrides=news)))) == frozenset()
        assert table.overrides == now
        assert (table.revision != revision) == (before != now), "so that what changes is remembered"


def test_only_nodes_of_which_there_is_news_are_told() -> None:
    before: Mapping[str, PublicIpOverrides] = {"a": (V4,), "b": (V4,), "c": (V4,)}
    assert overrides_between(before, {"a": (V4,), "b": (V6,)}) == NodeOverrides({"c": (), "b": (V6,)})
    assert overrides_between(before, before) is None


def test_what_was_chosen_stays_while_a_new_table_is_staged() -> None:
    table = Table()
    table.fold(Step(overrides=NodeOverrides({"a": (V4,)}, complete=True)))
    table.fold(Step(reset=True))
    table.fold(Step(synced=True))
    assert table.overrides == {"a": (V4,)}
