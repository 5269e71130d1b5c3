"""The recent steps: who can resume, and with what."""

import pytest

from flannelette.services.core.leases.table import Removed, Step, StoreStatus, Table, Upserted
from flannelette.services.lease.watch import encoding
from flannelette.services.lease.watch.log import ChangeLog, LogEntry
from flannelette.services.runtime.lease.wire import change_to_bytes, step_to_bytes
from tests.examples.leases import NETWORK, SMALL, make_lease, read


def entry(step: Step) -> LogEntry:
    return LogEntry(
        tuple((c.lease.name if isinstance(c, Upserted) else c.name, change_to_bytes(c)) for c in step.changes),
        step_to_bytes(Step(network=step.network)),
        step_to_bytes(Step(network_error=step.network_error)),
        step_to_bytes(Step(store=step.store)),
    )


def history_of(*steps: Step, most_entries: int = 100, most_bytes: int = 1 << 20) -> ChangeLog:
    change_log = ChangeLog("e", most_entries, most_bytes)
    for step in steps:
        change_log.append(entry(step))
    return change_log


def only_step(change_log: ChangeLog, position: int) -> Step:
    update = change_log.since(position)
    assert update is not None
    assert update.position == change_log.last
    return read(update.message)


A, B = make_lease(1), make_lease(2)
A2 = make_lease(1, version=2)


@pytest.mark.parametrize(
    "cursor", ["", "e", "e:", "e:x", "e:-1", "e:4", "other:1", ":1", "e:1:1", "e:²", "e:" + "9" * 5000]
)
def test_a_cursor_that_is_not_ours_has_no_position(cursor: str) -> None:
    assert history_of(Step(), Step(), Step()).position(cursor) is None


def test_a_cursor_of_ours_has_a_position_until_it_is_compacted() -> None:
    change_log = history_of(*[Step(changes=(Removed(str(n)),)) for n in range(5)], most_entries=3)
    assert [change_log.position(f"e:{n}") for n in range(7)] == [None, None, 2, 3, 4, 5, None]
    assert change_log.since(1) is None
    assert only_step(change_log, 2).changes == (Removed("2"), Removed("3"), Removed("4"))


def test_the_history_is_bounded_in_bytes_and_keeps_the_newest() -> None:
    big = Step(changes=tuple(Upserted(make_lease(n)) for n in range(100)))
    change_log = history_of(*[big] * 10, most_bytes=70_000)
    assert len(change_log) == 2
    assert change_log.bytes <= 70_000
    assert len(history_of(big, most_bytes=1)) == 1


def test_several_steps_become_one_with_the_last_change_of_each_lease() -> None:
    change_log = history_of(
        Step(changes=(Upserted(A),)), Step(changes=(Upserted(B),)), Step(changes=(Upserted(A2), Removed(B.name)))
    )
    step = only_step(change_log, 0)
    assert step == Step(changes=(Upserted(A2), Removed(B.name)), synced=True, cursor="e:3")


def test_who_is_far_behind_goes_as_far_as_a_message_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_CHANGES", 3)
    steps = [Step(changes=(Removed(text),)) for text in "aabacdde"]
    change_log, position, told = history_of(*steps), 0, []
    while position != change_log.last:
        update = change_log.since(position)
        assert update is not None
        position = update.position
        step = read(update.message)
        assert (step.synced, step.cursor) == (True, f"e:{position}")
        told.append("".join(change.name for change in step.changes if isinstance(change, Removed)))
    assert told == ["bac", "de"]


def test_an_update_stays_below_the_bytes_of_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "MOST_BYTES", 250)
    change_log = history_of(*(Step(changes=(Upserted(make_lease(number)),)) for number in range(5)))
    update = change_log.since(0)
    assert update is not None
    assert update.position == 2
    big = history_of(Step(changes=tuple(Upserted(make_lease(number)) for number in range(5)))).since(0)
    assert big is not None
    assert big.position == 1


def test_within_a_snapshot_an_update_is_neither_synced_nor_has_a_cursor() -> None:
    update = history_of(Step(changes=(Upserted(A),))).since(0, staged=True)
    assert update is not None
    assert read(update.message) == Step(changes=(Upserted(A),))


def test_what_all_need_is_made_once() -> None:
    change_log = history_of(Step(changes=(Upserted(A),)), Step(changes=(Upserted(B),)))
    assert change_log.since(1) is change_log.since(1)
    before = change_log.since(1)
    change_log.append(entry(Step(changes=(Upserted(A2),))))
    assert change_log.since(1) != before


@pytest.mark.parametrize(
    "steps",
    [
        (Step(network_error="bad"), Step(network=NETWORK)),
        (Step(network=NETWORK), Step(network_error="bad")),
        (Step(network_error="bad"), Step(network=NETWORK), Step(network_error="worse")),
        (Step(network=NETWORK), Step(network=SMALL)),
        (Step(store=StoreStatus("x", False, "a")), Step(store=StoreStatus("x", True))),
    ],
)
def test_network_and_store_end_up_as_after_the_single_steps(steps: tuple[Step, ...]) -> None:
    one_by_one, at_once = Table(), Table()
    for step in steps:
        one_by_one.fold(step)
    at_once.fold(only_step(history_of(*steps), 0))
    assert (at_once.network, at_once.network_error, at_once.store) == (
        one_by_one.network,
        one_by_one.network_error,
        one_by_one.store,
    )
