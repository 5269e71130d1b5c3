"""What a relay makes of the table above it: events for its own broker, cursors for its nodes' reports."""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.lease import Progress
from flannelette.services.core.leases.table import (
    NodeOverrides,
    PublicIpOverride,
    Removed,
    Step,
    StoreStatus,
    Table,
    Upserted,
)
from flannelette.services.lease.stores.relay import Cursors, NodeStreams, ReportForwarder
from flannelette.services.lease.stores.store import Changed, Snapshot, TableEvents
from flannelette.services.lease.watch import Broker, ChangeLog, LogEntry
from tests.examples.leases import NETWORK, SMALL, by_name, make_lease
from tests.stores.played import settle

ETCD_UP = StoreStatus("etcd", True)
A, B = make_lease(1), make_lease(2)

changes = st.one_of(
    st.builds(Upserted, st.builds(make_lease, st.integers(0, 6), version=st.integers(0, 2))),
    st.builds(lambda number: Removed(make_lease(number).name), st.integers(0, 6)),
)
steps = st.builds(
    Step,
    reset=st.booleans(),
    changes=st.lists(changes, max_size=5).map(tuple),
    network=st.sampled_from([None, NETWORK, SMALL]),
    network_error=st.sampled_from(["", "bad"]),
    store=st.none() | st.just(ETCD_UP) | st.just(StoreStatus("etcd", False, "no leader")),
    synced=st.booleans(),
    cursor=st.sampled_from(["", "up:1"]),
)


@given(st.lists(steps | st.none(), max_size=30))
def test_below_there_is_what_the_feed_has_as_soon_as_that_was_complete_once(script: list[Step | None]) -> None:
    feed, following, below = Table(), TableEvents("above"), Broker("relay", epoch="e")
    for step in script:
        if step is not None:
            following.touched |= feed.fold(step)
        for event in following.events(feed, step is not None, "" if step is not None else "nobody answers"):
            below.take(event)
        assert below.table.leases == (feed.leases if feed.synced else {})
        if feed.synced:
            assert below.table.synced
            assert (below.table.network, below.table.network_error) == (
                feed.network,
                feed.network_error or ("" if feed.network else "the store has no network configuration"),
            )
        if step is None:
            assert below.table.store == StoreStatus("relay", False, "nobody answers")


def test_a_new_start_above_takes_nothing_away_before_it_is_complete() -> None:
    feed, following = Table(), TableEvents("above")
    following.touched |= feed.fold(
        Step(
            reset=True, changes=(Upserted(A), Upserted(B)), network=NETWORK, store=ETCD_UP, synced=True, cursor="x:1"
        )
    )
    assert following.events(feed, True, "") == [Snapshot(by_name(A, B), NETWORK), StoreStatus("relay", True)]
    assert following.events(feed, False, "away") == [StoreStatus("relay", False, "away")]
    following.touched |= feed.fold(Step(reset=True, changes=(Upserted(A),), network=NETWORK))
    assert following.events(feed, True, "") == []
    following.touched |= feed.fold(Step(synced=True, cursor="y:0"))
    assert following.events(feed, True, "") == [Changed((Removed(B.name),)), StoreStatus("relay", True)]


def test_what_operators_have_chosen_above_is_chosen_below() -> None:
    feed, following, chosen = Table(), TableEvents("above"), (PublicIpOverride(4, "192.168.0.7", "a note"),)
    feed.fold(Step(overrides=NodeOverrides({"a": chosen}, complete=True)))
    assert following.events(feed, False, "away") == [StoreStatus("relay", False, "away")]
    following.touched |= feed.fold(Step(reset=True, changes=(Upserted(A),), network=NETWORK, synced=True))
    assert following.events(feed, True, "")[0] == Snapshot(by_name(A), NETWORK, overrides={"a": chosen})
    assert following.events(feed, True, "") == []
    feed.fold(Step(overrides=NodeOverrides({"a": (), "b": chosen})))
    assert following.events(feed, True, "") == [Changed(overrides={"b": chosen})]
    feed.fold(Step(overrides=NodeOverrides({}, complete=True)))
    assert following.events(feed, False, "away") == [Changed(overrides={}), StoreStatus("relay", False, "away")]


def test_the_store_of_the_store_is_named() -> None:
    feed, following = Table(), TableEvents("unix:/above")
    feed.fold(Step(store=StoreStatus("etcd", False, "no leader")))
    (status,) = following.events(feed, True, "")
    assert status == StoreStatus(
        "relay", False, "the etcd store of the lease service at unix:/above is away: no leader"
    )


def test_a_position_stands_for_the_newest_cursor_above_that_was_all_in_it() -> None:
    cursors = Cursors()
    assert cursors.upstream(5) == ""
    assert [
        cursors.record(0, "a:3"),
        cursors.record(0, "a:3"),
        cursors.record(2, "a:4"),
        cursors.record(2, "a:5"),
    ] == [
        True,
        False,
        True,
        True,
    ]
    assert [cursors.upstream(position) for position in (0, 1, 2, 9)] == ["a:3", "a:3", "a:5", "a:5"]


class Above:
    """The lease service above, as far as reports go."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str]] = []
        self.is_away = False

    async def report(self, progress: Progress) -> float:
        if self.is_away:
            raise Unavailable("away")
        self.told.append((progress.node, progress.cursor))
        return 1.5


async def test_reports_go_up_with_the_cursor_above_and_again_after_a_new_start() -> None:
    above, change_log = Above(), ChangeLog("below", 100, 1 << 20)
    reporting = ReportForwarder(change_log, above.report)
    job = asyncio.create_task(reporting.run())
    reporting.reached("up:7")
    assert await reporting.take(Progress("a", "below:0")) == 1.5, "the pause that is asked for above"
    change_log.append(LogEntry(()))
    reporting.reached("up:8")
    await reporting.take(Progress("b", "below:1"))
    await settle()
    assert above.told == [("a", "up:7"), ("b", "up:8")]
    reporting.reached("new:0")
    await settle()
    assert above.told[2:] == [("b", "new:0")], "a has not got so far"
    await reporting.take(Progress("a", ""))
    assert above.told[3:] == [("a", "")], "nothing is in its kernel any more"
    above.is_away = True
    with pytest.raises(Unavailable):
        await reporting.take(Progress("a", "below:1"))
    above.is_away = False
    await reporting.repeat("a")
    reporting.on_connect("b")
    await reporting.repeat("b")
    assert above.told[4:] == [("a", "new:0")], "what b said before its newest stream counts no more"
    job.cancel()


async def test_each_node_below_has_one_stream_above_and_a_new_one_for_each_new_stream() -> None:
    opened: list[str] = []
    is_open: set[str] = set()

    async def keep(node: str, machine: str) -> bool:
        opened.append(node)
        is_open.add(node)
        try:
            await asyncio.Event().wait()
        finally:
            is_open.discard(node)
        return True

    behind = NodeStreams(keep, lambda node: [""])
    job = asyncio.create_task(behind.run())
    steps: list[tuple[Callable[[str], None], str, set[str]]] = [
        (behind.on_connect, "a", {"a"}),
        (behind.on_connect, "b", {"a", "b"}),
        (behind.on_connect, "a", {"a", "b"}),
        (behind.on_disconnect, "a", {"b"}),
    ]
    for call, node, expected in steps:
        call(node)
        await settle()
        assert is_open == expected
    assert sorted(opened) == ["a", "a", "b"]
    job.cancel()
    with suppress(asyncio.CancelledError):
        await job
    assert not is_open
