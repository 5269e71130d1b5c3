"""What a record says of a path's checksum offload, from the fates of its large probes."""

from collections.abc import Collection

import pytest

from flannelette.services.dataplane.probes.record import PROOFS, ChecksumRecord, LargeProbe, Offload, Record

ECHO, OFFLOADED, COMPUTED = ALL = tuple(LargeProbe)
MTU = 1450


def turns(record: Record, passes: Collection[LargeProbe], count: int = 1) -> list[LargeProbe]:
    """So many turns in which small probes are answered, and large ones of the kinds that pass."""
    kinds = []
    for _ in range(count):
        record.note(0, 0.1, 0.0)
        kind = record.next_large
        kinds.append(kind)
        record.note(record.next_size, 0.1 if kind in passes else None, 0.0, kind)
    return kinds


def new_record() -> Record:
    return Record(True, MTU, ChecksumRecord())


def test_where_all_is_well_a_datagram_is_the_only_large_probe() -> None:
    record = new_record()
    assert turns(record, ALL, 10) == [OFFLOADED] * 10
    assert (record.offload, record.sizes.largest, record.is_in_doubt) == (Offload.WORKS, MTU, False)


def test_five_proofs_in_a_row_are_a_broken_offload_and_one_answer_is_none() -> None:
    record = new_record()
    turns(record, ALL)
    assert turns(record, [COMPUTED], 2 * PROOFS - 1)[:3] == [OFFLOADED, COMPUTED, OFFLOADED]
    assert (record.offload, record.is_in_doubt) == (Offload.WORKS, True)
    turns(record, [COMPUTED])
    assert (record.offload, record.is_in_doubt, record.is_narrow) == (Offload.BROKEN, False, False)
    assert record.sizes.largest == MTU
    turns(record, [COMPUTED], 20)
    told = [record.offload for _ in range(2) if turns(record, ALL)]
    assert told == [Offload.WORKS, Offload.WORKS]


def test_proofs_count_in_a_row_only() -> None:
    record = new_record()
    for _ in range(9):
        turns(record, [COMPUTED], 2 * PROOFS - 2)
        turns(record, ALL)
    assert record.offload is Offload.WORKS


@pytest.mark.parametrize("answered_before", [True, False])
def test_a_peer_that_answers_no_datagram_is_unknown_and_costs_no_more_turns(*, answered_before: bool) -> None:
    record = new_record()
    turns(record, ALL if answered_before else [ECHO])
    assert set(turns(record, [ECHO], 12)) == set(LargeProbe)
    assert (record.offload, record.is_in_doubt, record.is_narrow) == (Offload.UNKNOWN, False, False)
    assert record.sizes.largest == MTU
    assert not any(record.is_in_doubt for _ in range(9) if turns(record, [ECHO]))
    turns(record, ALL, 3)
    assert record.offload is Offload.WORKS


def test_a_size_that_does_not_pass_says_nothing_of_checksums() -> None:
    record = new_record()
    turns(record, (), 40)
    assert (record.offload, record.is_narrow) == (Offload.UNKNOWN, True)


def test_lost_packets_of_all_kinds_say_nothing_of_checksums() -> None:
    record = new_record()
    turns(record, ALL)
    for _ in range(20):
        record.note(0, None, 0.0)
        record.note(MTU, None, 0.0, record.next_large)
    assert record.offload is Offload.WORKS
    record.note(0, 0.1, 0.0)
    assert record.next_large is OFFLOADED
