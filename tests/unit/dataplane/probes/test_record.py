"""What a record says of the probes that it was told."""

import pytest

from flannelette.services.dataplane.probes.record import Answering, LargeProbe, Record

NOW = 1_000_000.0


def told(record: Record, *outcomes: float | None, size: int = 0, at: float = NOW) -> Record:
    for outcome in outcomes:
        record.note(size, outcome, at)
    return record


@pytest.mark.parametrize(
    ("must_answer", "outcomes", "state"),
    [
        (True, (), Answering.UNKNOWN),
        (True, (None, None), Answering.UNKNOWN),
        (True, (None, None, None), Answering.SILENT),
        (False, (None, None, None), Answering.UNKNOWN),
        (False, (0.1, None, None, None), Answering.SILENT),
        (True, (0.1, None, None), Answering.ANSWERS),
        (True, (None, None, None, 0.1), Answering.ANSWERS),
    ],
)
def test_three_lost_in_a_row_are_silence_where_somebody_has_to_answer(
    must_answer: bool, outcomes: tuple[float | None, ...], state: Answering
) -> None:
    assert told(Record(must_answer, 1450), *outcomes).state is state


def test_loss_is_of_the_last_minute() -> None:
    record = told(Record(True, 1450), 0.1, *[None, 0.1] * 50)
    assert record.loss == 50 / 101
    for seconds in (10, 20, 30, 40, 50):
        told(record, 0.1, at=NOW + seconds)
    assert 0 < record.loss < 50 / 101
    assert told(record, 0.1, at=NOW + 65).loss == 0
    assert (record.sent, record.answered) == (107, 57)


def test_loss_begins_anew_when_a_silent_path_answers_again() -> None:
    record = told(Record(True, 1450), 0.1, *[None] * 12)
    assert record.loss == 12 / 13
    assert told(record, 0.1).loss == 0
    assert told(record, None, 0.1, at=NOW + 1).loss == 1 / 3


def test_what_was_sent_before_the_first_answer_is_not_loss() -> None:
    record = told(Record(True, 1450), None, None, 0.1, 0.1)
    assert record.loss == 0
    assert told(record, None, 0.1, 0.1, 0.1).loss == 1 / 6


def test_the_round_trip_time_is_smoothed_from_the_first_answer_on() -> None:
    record = told(Record(True, 1450), 0.008)
    assert record.smoothed == 0.008
    assert told(record, 0.016).smoothed == pytest.approx(0.009)


@pytest.mark.parametrize("passes", [1449, 1400, 1280, 576, 100])
def test_the_largest_packet_is_found_in_few_probes(passes: int) -> None:
    record = told(Record(True, 1450), 0.1)
    assert record.next_size == 1450
    told(record, None, None, None, size=1450)
    assert record.is_narrow
    probes = 0
    while (size := record.next_size) < 1450:
        assert record.is_in_doubt
        told(record, 0.1 if size <= passes else None, size=size)
        probes += 1
    assert (record.sizes.largest, record.is_in_doubt, record.is_narrow) == (passes, False, True)
    assert probes <= 11
    told(record, 0.1, size=1450)
    assert (record.sizes.largest, record.is_narrow, record.next_size) == (1450, False, 1450)


def search(record: Record, passes: int) -> Record:
    """Probes in turns until nothing is in doubt, on a path that carries packets of so many bytes."""
    told(record, 0.1)
    for _ in range(40):
        size = record.next_size
        told(record, 0.1 if size <= passes else None, size=size)
    assert not record.is_in_doubt
    return record


@pytest.mark.parametrize("ways", [(1400, 1280, 1401), (1449, 100, 1450), (576, 577, 576), (1200, 1199, 1201)])
def test_a_path_that_changes_is_followed_down_and_up(ways: tuple[int, ...]) -> None:
    record = Record(True, 1450)
    for passes in ways:
        search(record, passes)
        assert record.limit == (0 if passes == 1450 else passes)
        assert record.is_narrow == (passes < 1450)


def test_what_a_router_tells_is_asked_about_at_once_and_changes_nothing_by_itself() -> None:
    record = told(Record(True, 1450), 0.1)
    told(record, 0.1, size=1450)
    assert record.hear()
    assert (record.is_in_doubt, record.next_size, record.limit) == (True, 1450, 0)
    assert not record.hear(), "it is asked about already"
    told(record, 0.1, size=1450)
    assert (record.is_in_doubt, record.limit) == (False, 0)
    search(record, 1400)
    assert record.hear()
    assert (record.is_in_doubt, record.next_size, record.limit) == (True, 1400, 1400)
    told(record, 0.1, size=1400)
    assert (record.is_in_doubt, record.limit) == (False, 1400)
    assert record.hear()
    search(record, 1300)
    assert record.limit == 1300


def test_a_silent_peer_is_not_asked_for_a_router() -> None:
    assert not told(Record(True, 1450), None, None, None).hear()


def test_a_probe_that_is_lost_by_chance_moves_no_limit() -> None:
    record = search(Record(True, 1450), 1400)
    for _ in range(9):
        size = record.next_size
        told(record, None, size=size)
        for _ in range(3):
            told(record, 0.1 if record.next_size <= 1400 else None, size=record.next_size)
        assert (record.limit, record.is_searching) == (1400, False)


def test_the_limit_is_not_known_before_a_packet_has_passed() -> None:
    record = told(Record(True, 1450), 0.1)
    assert record.limit is None
    told(record, None, None, None, size=1450)
    assert record.next_size == 1200
    assert search(record, 1200).limit == 1200


def test_large_packets_that_are_lost_with_the_small_ones_say_nothing() -> None:
    record = told(Record(True, 1450), 0.1)
    told(record, 0.1, size=1450)
    for _ in range(9):
        told(record, None)
        told(record, None, size=1450)
    assert (record.is_narrow, record.sizes.largest) == (False, 1450)


def test_a_path_that_answers_datagrams_and_no_pings_is_mute_until_it_answers_neither() -> None:
    record = told(Record(True, 1450), 0.1)
    for _ in range(3):
        told(record, None)
        assert (record.next_size, record.next_large) == (100, LargeProbe.COMPUTED)
        record.note(100, 0.1, NOW, LargeProbe.COMPUTED)
    assert (record.state, record.is_mute, record.loss) == (Answering.ANSWERS, True, 0)
    for _ in range(3):
        assert record.is_mute
        told(record, None)
        record.note(100, None, NOW, LargeProbe.COMPUTED)
    assert (record.state, record.is_mute) == (Answering.SILENT, False)
    assert told(record, 0.1).state is Answering.ANSWERS
    assert not record.is_mute


def test_a_path_leaks_from_three_lost_probes_on_until_a_dozen_in_a_row_are_answered() -> None:
    record = told(Record(True, 1450), None, None, 0.1, None, 0.1, None)
    assert (record.is_leaking, record.is_in_doubt) == (False, True)
    told(record, 0.1, None)
    assert (record.is_leaking, record.is_in_doubt) == (True, True)
    told(record, *[0.1] * 11)
    assert (record.is_leaking, record.is_in_doubt) == (True, True)
    told(record, 0.1)
    assert (record.is_leaking, record.is_in_doubt) == (False, False)
