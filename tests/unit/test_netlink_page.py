"""A dump is known again by all that it says but its number and statistics."""

import struct
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.dataplane.netlink import dump, uapi
from services.dataplane.netlink.objects import FdbEntry, Neighbour, Route
from services.dataplane.netlink.page import Likeness, Page
from services.dataplane.netlink.reader import Reader
from tests.netlink_examples import DONE, MULTI, SEQUENCE, fdb_message, message, neighbour_message, route_message

LATER = SEQUENCE + 1
SUBNET = bytes((10, 5, 2, 0))
ROUTES = [Route(SUBNET[:3] + bytes([n]), SUBNET, n, uapi.AF_INET, 24, 7, 77, onlink=True) for n in range(1, 40)]
NEIGHBOURS = [Neighbour(n.to_bytes(4), bytes(2) + n.to_bytes(4), uapi.AF_INET, 7) for n in range(1, 40)]


def datagrams(messages: Sequence[bytes], block: int = 16) -> list[bytes]:
    whole = [*messages, DONE]
    return [b"".join(whole[start : start + block]) for start in range(0, len(whole), block)]


def renumbered(block: bytes, sequence: int = LATER) -> bytes:
    changed, offset = bytearray(block), 0
    while offset < len(block):
        struct.pack_into("=I", changed, offset + 8, sequence)
        offset += (struct.unpack_from("=I", block, offset)[0] + 3) & ~3
    return bytes(changed)


def pages(kind: dump.Kind[Any], blocks: Sequence[bytes]) -> list[Page]:
    reader = Reader(kind, SEQUENCE, is_marked=True)
    assert [reader.take(block) for block in blocks] == [False] * (len(blocks) - 1) + [True]
    return reader.pages


def is_like(known: Sequence[Page], blocks: Sequence[bytes]) -> bool:
    """And the dump is taken to its end."""
    likeness = Likeness(known, LATER)
    assert [likeness.take(block) for block in blocks] == [False] * (len(blocks) - 1) + [True]
    return likeness.holds


def neighbours(used: int, state: int = 0x80) -> list[bytes]:
    messages = [neighbour_message(each, 0x80, used + n) for n, each in enumerate(NEIGHBOURS)]
    messages[20] = neighbour_message(NEIGHBOURS[20], state, used)
    return datagrams(messages)


def test_statistics_and_the_number_of_the_request_do_not_count() -> None:
    known = pages(dump.NEIGHBOURS, neighbours(1))
    assert is_like(known, [renumbered(block) for block in neighbours(5000)])


def test_an_entry_that_does_not_count_is_known_too_and_counts_as_soon_as_it_is_another() -> None:
    known = pages(dump.NEIGHBOURS, neighbours(1, state=0x02))
    assert is_like(known, [renumbered(block) for block in neighbours(5000, state=0x02)])
    assert not is_like(known, [renumbered(block) for block in neighbours(5000, state=0x04)])


@given(st.integers(0), st.integers(1, 255))
def test_any_other_byte_makes_another_dump(place: int, difference: int) -> None:
    blocks = datagrams([route_message(route) for route in ROUTES])
    known = pages(dump.ROUTES, blocks)
    later = [bytearray(renumbered(block)) for block in blocks]
    block = later[place % 2]
    place = place // 2 % len(block)
    block[place] ^= difference
    is_number = 8 <= place % (len(block) // 16) < 12
    likeness = Likeness(known, LATER)
    for each in later:
        likeness.take(bytes(each))
    assert likeness.holds == (is_number and place >= 12)


def test_more_less_and_other_objects_make_another_dump() -> None:
    messages = [route_message(route) for route in ROUTES]
    known = pages(dump.ROUTES, datagrams(messages))
    for other in (messages[1:], [*messages, messages[0]], [*messages[1:], messages[0]], []):
        assert not is_like(known, [renumbered(block) for block in datagrams(other)])
    assert is_like(known, [renumbered(block) for block in datagrams(messages)])
    assert not is_like(known, [renumbered(block) for block in datagrams(messages, 15)]), (
        "not known, rather than wrong"
    )


def test_an_answer_to_another_request_is_none_to_this_one() -> None:
    blocks = datagrams([route_message(route) for route in ROUTES])
    assert not is_like(pages(dump.ROUTES, blocks), blocks)


def test_an_interrupted_dump_is_another_one() -> None:
    blocks = datagrams([route_message(route) for route in ROUTES])
    later = [renumbered(block) for block in blocks]
    later[-1] = later[-1][:-20] + message(uapi.NLMSG_DONE, bytes(4), MULTI | uapi.NLM_F_DUMP_INTR, LATER)
    assert not is_like(pages(dump.ROUTES, blocks), later)


def test_a_dump_of_which_no_two_messages_are_of_one_form_is_not_worth_it() -> None:
    mixed = [route_message(route._replace(length=8 + n % 2 * 16)) for n, route in enumerate(ROUTES)]
    assert pages(dump.ROUTES, datagrams(mixed, 40)) == []
    assert not is_like([], [renumbered(block) for block in datagrams(mixed)])


def test_a_refused_dump_is_never_known_again() -> None:
    assert pages(dump.ROUTES, [message(uapi.NLMSG_DONE, struct.pack("=i", -2))]) == []


@given(st.lists(st.integers(0, 2), max_size=24), st.integers(1, 9))
def test_entries_that_age_among_those_that_do_not(kinds: list[int], block: int) -> None:
    written = [FdbEntry(bytes(5) + bytes([n]), bytes(4 if kind else 16), 7) for n, kind in enumerate(kinds)]
    states = [0x02 if kind == 2 else 0x80 for kind in kinds]
    blocks = datagrams([fdb_message(*each) for each in zip(written, states, strict=True)], block)
    assert is_like(pages(dump.FDB_ENTRIES, blocks), [renumbered(each) for each in blocks])
