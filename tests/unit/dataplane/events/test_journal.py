"""The ring of decisions, and what a call of WatchEvents reads from it."""

import asyncio
import tracemalloc
from collections.abc import Iterable

import pytest
from structlog.testing import capture_logs

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.errors import InvalidInput
from flannelette.services.dataplane.api.service import reading_of
from flannelette.services.dataplane.api.status import repair_counts
from flannelette.services.dataplane.events import Cause, NodeEventKind, NodeJournal
from flannelette.services.runtime.events import REMEMBERED, Event, Subject

N2, N3 = Subject("10.5.53.0-24", "n2"), Subject("10.5.97.0-24", "n3")


def repair(cause: Cause, objects: int = 1) -> Event:
    return Event(NodeEventKind.REPAIR, f"repaired: {objects}", cause.value, 0.001, objects=objects, repair=cause)


def journal(*events: Event, size: int = 8) -> NodeJournal:
    times = iter(range(100, 10_000))
    made = NodeJournal(size, lambda: next(times))
    for event in events:
        made.note(event)
    return made


def numbered(count: int, first: int = 1) -> Iterable[Event]:
    return (Event(NodeEventKind.RESYNC, f"event {number}") for number in range(first, first + count))


def told(made: NodeJournal, **request: object) -> list[str]:
    """What a call that does not follow gets."""
    reading = reading_of(made, pb.WatchEventsRequest(**request))  # type: ignore[arg-type]  # fields of several types
    found = []
    while not reading.is_complete:
        found += [message.what for message in reading.take()]
    return found


def test_events_are_told_in_order_with_everything_about_them() -> None:
    made = journal()
    made.cursor = "e1:7"
    made.note(Event(NodeEventKind.PEER_ADDED, "peer added: n2", "lease change", 0.0012, (N2,), 1, objects=3))
    (message,) = reading_of(made, pb.WatchEventsRequest()).take()
    assert message.time.ToSeconds() == 100
    assert message == pb.WatchEventsResponse(
        time=message.time,
        what="peer added: n2",
        cause="lease change",
        microseconds=1200,
        kind=pb.EVENT_KIND_PEER_ADDED,
        position=f"{made.epoch}:1",
        cursor="e1:7",
        peers=[pb.PeerName(name="10.5.53.0-24", node="n2")],
        peer_count=1,
        objects=3,
    )


def test_kinds_and_causes_are_those_of_the_proto() -> None:
    kinds, causes = pb.EventKind.DESCRIPTOR.values, pb.RepairCause.DESCRIPTOR.values
    assert [f"EVENT_KIND_{kind.name}" for kind in NodeEventKind] == [value.name for value in kinds[1:]]
    assert [f"REPAIR_CAUSE_{cause.name}" for cause in Cause] == [value.name for value in causes[1:]]


def test_the_oldest_are_forgotten_and_a_reader_that_was_too_slow_is_told_how_many() -> None:
    made = journal(*numbered(3))
    reading = reading_of(made, pb.WatchEventsRequest())
    assert [message.what for message in reading.take()] == ["event 1", "event 2", "event 3"]
    for event in numbered(20, first=4):
        made.note(event)
    late = reading.take()
    assert [message.what for message in late] == [f"event {number}" for number in range(16, 24)]
    assert [message.missed for message in late] == [12] + [0] * 7
    assert reading.is_complete
    assert reading.take() == []


def test_a_reader_takes_some_at_a_time_and_comes_to_the_end() -> None:
    made = journal(*numbered(200), size=REMEMBERED)
    assert told(made) == [f"event {number}" for number in range(1, 201)]
    assert len(reading_of(made, pb.WatchEventsRequest()).take()) < 100


def test_after_a_position_comes_what_follows_it_and_one_of_another_process_is_before_everything() -> None:
    made = journal(*numbered(3))
    assert told(made, after=f"{made.epoch}:2") == ["event 3"]
    assert told(made, after=f"{made.epoch}:99") == []
    assert told(made, after="0:2") == ["event 1", "event 2", "event 3"]
    for nonsense in ("x", ":3", f"{made.epoch}:", f"{made.epoch}:-1", "a:b"):
        with pytest.raises(InvalidInput, match="is not a position"):
            reading_of(made, pb.WatchEventsRequest(after=nonsense))


def test_since_a_moment_by_kind_and_by_peer() -> None:
    many = Event(NodeEventKind.PEERS_CHANGED, "many", subjects=(N3,), subject_count=900)
    two = Event(NodeEventKind.PEER_ADDED, "n2 and n3", subjects=(N2, N3), subject_count=2)
    one = Event(NodeEventKind.PEER_REMOVED, "n3", subjects=(N3,), subject_count=1)
    made = journal(many, two, one, Event(NodeEventKind.READINESS, "ready"))
    moment = pb.WatchEventsRequest().since_time
    moment.FromSeconds(102)
    assert told(made, since_time=moment) == ["n3", "ready"]
    assert told(made, kinds=[pb.EVENT_KIND_READINESS, pb.EVENT_KIND_PEER_ADDED]) == ["n2 and n3", "ready"]
    assert told(made, peer="n2") == ["many", "n2 and n3"]
    assert told(made, peer="10.5.97.0-24") == ["many", "n2 and n3", "n3"]
    assert told(made, peer="n3", kinds=[pb.EVENT_KIND_PEER_REMOVED]) == ["n3"]


def test_what_is_missed_is_counted_at_the_next_event_that_is_wanted() -> None:
    made = journal(*numbered(20), Event(NodeEventKind.READINESS, "ready"))
    (message,) = reading_of(made, pb.WatchEventsRequest(kinds=[pb.EVENT_KIND_READINESS])).take()
    assert (message.what, message.missed) == ("ready", 13)


async def test_news_wake_everybody_who_waits_and_who_notes_them_never_waits() -> None:
    made = journal()
    readings = [reading_of(made, pb.WatchEventsRequest()) for _ in range(3)]
    waiting = [asyncio.ensure_future(reading.news()) for reading in readings]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    for event in numbered(2):
        made.note(event)
    await asyncio.wait_for(asyncio.gather(*waiting), 5)
    assert [len(reading.take()) for reading in readings] == [2, 2, 2]
    again = asyncio.ensure_future(readings[0].news())
    await asyncio.sleep(0)
    assert not again.done()
    again.cancel()


def test_repairs_are_counted_by_cause() -> None:
    made = journal(repair(Cause.LINK_DOWN, 4), repair(Cause.ROUTE_DELETED), repair(Cause.LINK_DOWN))
    assert repair_counts(made) == [
        pb.RepairCount(cause=pb.REPAIR_CAUSE_LINK_DOWN, objects=5),
        pb.RepairCount(cause=pb.REPAIR_CAUSE_ROUTE_DELETED, objects=1),
    ]
    assert made.repairs.total() == 6


def test_who_fights_with_us_does_not_fill_the_log() -> None:
    with capture_logs() as logs:
        journal(*[repair(Cause.ROUTE_DELETED)] * 100, repair(Cause.LINK_DOWN))
    assert [entry["cause"] for entry in logs] == ["route deleted", "link down"]


def test_a_full_journal_is_a_few_megabytes() -> None:
    tracemalloc.start()
    made = NodeJournal()
    for number in range(2 * REMEMBERED):
        peers = tuple(Subject(f"10.{number % 256}.{each}.0-24", f"node-{number}-{each}") for each in range(8))
        made.note(
            Event(NodeEventKind.PEERS_CHANGED, f"{number:,} peers added: {peers}", "lease change", 0.1, peers, 1000)
        )
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 16 << 20
    assert made.last == 2 * REMEMBERED


def test_data_of_leases_that_changes_and_changes_leaves_the_journal_small() -> None:
    tracemalloc.start()
    made = NodeJournal()
    for number in range(REMEMBERED):
        data = f"{number:08192}"
        made.note(Event(NodeEventKind.PEER_CHANGED, f"data {data} -> {data}", data, subjects=(Subject(data, data),)))
    size, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert size < 24 << 20
    assert told(made)[0].startswith("data 0")
