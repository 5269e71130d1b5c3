"""Dumps read by learned layouts say the same as dumps read attribute by attribute."""

import struct
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.dataplane.netlink import dumps as dump
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.dumps import Reader
from flannelette.services.dataplane.netlink.objects import FdbEntry, Neighbour, Route
from tests.examples.netlink_dumps import (
    DONE,
    MULTI,
    SEQUENCE,
    attribute,
    fdb_message,
    message,
    neighbour_message,
    number,
    route_message,
)


def read(kind: dump.MessageFormat[Any], messages: Sequence[bytes], block: int = 480) -> list[Any]:
    reader = Reader(kind, SEQUENCE)
    for start in range(0, len(messages), block):
        assert not reader.take(b"".join(messages[start : start + block]))
    assert reader.take(DONE)
    assert reader.refusal is None
    assert not reader.inconsistent
    return reader.found


few = st.integers(0, 3)


@st.composite
def routes(draw: st.DrawFn) -> Route:
    family = draw(st.sampled_from((uapi.AF_INET, uapi.AF_INET6)))
    size = 4 if family == uapi.AF_INET else 16
    length = draw(st.sampled_from((0, 24, 32)))
    address = draw(st.binary(min_size=size, max_size=size))
    return Route(
        address if length else bytes(size),
        draw(st.sampled_from((b"", bytes(size), address))),
        draw(few),
        family,
        length,
        draw(few),
        draw(few),
        draw(few),
        draw(few),
        draw(st.booleans()),
        draw(st.sampled_from((254, 1000))),
        draw(few),
        draw(st.sampled_from((b"", b"", attribute(uapi.RTA_PREFSRC, address), number(uapi.RTA_NH_ID, 5)))),
    )


@given(st.lists(routes(), max_size=60), st.integers(1, 20))
def test_any_mixture_of_routes_is_read_as_it_was_written(written: list[Route], block: int) -> None:
    assert read(dump.ROUTES, [route_message(each) for each in written], block) == written


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=6, max_size=6),
            st.sampled_from((bytes(4), bytes(16))),
            few,
            few,
            few,
            few,
            st.booleans(),
        ),
        max_size=40,
    )
)
def test_any_mixture_of_forwarding_entries_is_read_without_those_that_age(written: list[tuple[Any, ...]]) -> None:
    entries = [(FdbEntry(*fields), ages) for *fields, ages in written]
    messages = [fdb_message(entry, 0x02 if ages else 0x80) for entry, ages in entries]
    assert read(dump.FDB_ENTRIES, messages) == [entry for entry, ages in entries if not ages]


def test_forwarding_entries_of_a_bridge_that_the_device_is_a_port_of_are_none_of_its_own() -> None:
    entry = FdbEntry(bytes(6), bytes(4), 7)
    plain = fdb_message(entry)
    bridges = message(uapi.RTM_NEWNEIGH, plain[16:] + number(uapi.NDA_MASTER, 9))
    assert read(dump.FDB_ENTRIES, [plain, bridges, plain, bridges]) == [entry, entry]


@pytest.mark.parametrize("size", [4, 16])
def test_of_messages_that_look_alike_only_the_first_is_walked(size: int) -> None:
    family = uapi.AF_INET if size == 4 else uapi.AF_INET6
    written = [Route(n.to_bytes(size), n.to_bytes(size), n, family, 24, 7, 77, onlink=True) for n in range(1, 100)]
    walked: list[dump.Fields] = []

    def build(fields: dump.Fields) -> Route | None:
        walked.append(fields)
        return dump.ROUTES.build(fields)

    assert read(replace(dump.ROUTES, build=build), [route_message(each) for each in written], 10) == written
    assert len(walked) == 1


def test_only_permanent_neighbours_count_also_between_alike_ones() -> None:
    written = [Neighbour(n.to_bytes(4), bytes(2) + n.to_bytes(4), uapi.AF_INET, 7) for n in range(30)]
    states = [(0x02, 0x80, 0x80, 0x40)[n % 4] for n in range(30)]
    messages = [
        neighbour_message(each, state, used=n) for n, (each, state) in enumerate(zip(written, states, strict=True))
    ]
    expected = [each for each, state in zip(written, states, strict=True) if state == 0x80]
    assert read(dump.NEIGHBOURS, messages) == expected


def test_dead_linkdown_and_offload_flags_do_not_change_a_route() -> None:
    route = Route(bytes((10, 5, 2, 0)), bytes((10, 5, 2, 0)), 3, uapi.AF_INET, 24, 7, 77, onlink=True)
    plain = route_message(route)
    flagged = plain[:24] + struct.pack("=I", uapi.RTNH_F_ONLINK | 1 | 8 | 16) + plain[28:]
    assert read(dump.ROUTES, [plain, flagged, plain]) == [route] * 3


def test_answers_to_another_request_are_left_alone() -> None:
    route = Route(bytes((10, 5, 2, 0)), b"", 3, uapi.AF_INET, 24, 7, 77)
    stale = message(uapi.RTM_NEWROUTE, route_message(route)[16:], sequence=SEQUENCE - 1)
    assert read(dump.ROUTES, [stale, message(uapi.NLMSG_DONE, bytes(4), sequence=SEQUENCE - 1)]) == []


def test_a_dump_that_the_kernel_calls_interrupted_is_inconsistent() -> None:
    route = Route(bytes((10, 5, 2, 0)), b"", 3, uapi.AF_INET, 24, 7, 77)
    for messages in (
        [route_message(route)] * 2 + [route_message(route, MULTI | uapi.NLM_F_DUMP_INTR)],
        [route_message(route), message(uapi.NLMSG_DONE, bytes(4), MULTI | uapi.NLM_F_DUMP_INTR)],
    ):
        reader = Reader(dump.ROUTES, SEQUENCE)
        reader.take(b"".join([*messages, DONE]))
        assert reader.inconsistent


def test_a_datagram_that_was_cut_off_is_inconsistent() -> None:
    reader = Reader(dump.ROUTES, SEQUENCE)
    route = Route(bytes((10, 5, 2, 0)), b"", 3, uapi.AF_INET, 24, 7, 77)
    assert not reader.take((route_message(route) * 3)[:-8])
    assert reader.inconsistent
    assert reader.found == [route] * 2


def test_a_refused_dump_tells_why() -> None:
    reader = Reader(dump.ROUTES, SEQUENCE)
    detail = attribute(uapi.NLMSGERR_ATTR_MSG, b"ipv4: FIB table does not exist\0")
    body = struct.pack("=i", -2) + bytes(16) + detail
    assert reader.take(message(uapi.NLMSG_ERROR, body, flags=uapi.NLM_F_ACK_TLVS))
    assert reader.refusal is not None
    assert (reader.refusal.error, reader.refusal.detail) == (2, "ipv4: FIB table does not exist")


def test_a_source_specific_route_does_not_count() -> None:
    header = dump.ROUTES.header.pack(uapi.AF_INET6, 64, 64, 0, 254, 4, 0, 1, 0)
    assert read(dump.ROUTES, [message(uapi.RTM_NEWROUTE, header + attribute(uapi.RTA_DST, bytes(16)))]) == []
