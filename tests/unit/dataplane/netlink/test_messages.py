"""Messages cut from templates are, byte for byte, what pyroute2 encodes."""

import socket
import struct
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyroute2.netlink.rtnl.ndmsg import ndmsg
from pyroute2.netlink.rtnl.rtmsg import rtmsg

from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.kernel import BATCH_BYTES, batches, encode
from flannelette.services.dataplane.netlink.objects import FdbEntry, KernelObject, Neighbour, Route, Verb

PUT_FLAGS, DELETE_FLAGS = 0x501, 0x001
U32 = st.integers(0, 2**32 - 1)
INDEXES = st.integers(1, 2**31 - 1)
MACS = st.binary(min_size=6, max_size=6)
SIZES = st.sampled_from((4, 16))


def of_size(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


ADDRESSES = SIZES.flatmap(of_size)
VERBS: st.SearchStrategy[Verb] = st.sampled_from(("replace", "del"))


def routes_of_size(size: int) -> st.SearchStrategy[Route]:
    """Family, addresses and length fit each other; everything else is any."""
    return st.tuples(
        of_size(size),
        st.just(b"") | of_size(size),
        st.integers(1, 2**32 - 1),
        st.just(2 if size == 4 else 10),
        st.integers(0, size * 8),
        st.just(0) | INDEXES,
        st.integers(0, 255),
        st.integers(0, 255),
        st.integers(0, 11),
        st.booleans(),
        st.integers(1, 2**32 - 1) | st.just(254),
        st.integers(0, 255),
    ).map(lambda fields: Route(*fields))


def text(packed: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(packed) == 4 else socket.AF_INET6, packed)


def encoded(message: Any, kind: int, flags: int, sequence: int) -> bytes:
    message["header"]["type"] = kind
    message["header"]["flags"] = flags
    message["header"]["sequence_number"] = sequence
    message.encode()
    return bytes(message.data)


@given(SIZES.flatmap(routes_of_size), VERBS, U32)
def test_a_route_is_encoded_as_pyroute2_does(route: Route, verb: Verb, sequence: int) -> None:
    message = rtmsg()
    message["family"], message["dst_len"], message["tos"] = route.family, route.length, route.tos
    message["table"] = route.table if route.table < 256 else 252
    message["proto"], message["scope"], message["type"] = route.protocol, route.scope, route.route_type
    message["flags"] = 4 if route.onlink else 0
    attributes: list[tuple[str, object]] = [("RTA_DST", text(route.dst))]
    if route.gateway:
        attributes.append(("RTA_GATEWAY", text(route.gateway)))
    if route.ifindex:
        attributes.append(("RTA_OIF", route.ifindex))
    attributes.append(("RTA_PRIORITY", route.metric))
    if route.table > 255:
        attributes.append(("RTA_TABLE", route.table))
    message["attrs"] = attributes
    expected = encoded(message, 24, PUT_FLAGS, sequence) if verb == "replace" else encoded(message, 25, 1, sequence)
    assert encode(verb, route, sequence) == expected


@given(ADDRESSES, MACS, INDEXES, VERBS, U32)
def test_a_neighbour_is_encoded_as_pyroute2_does(
    dst: bytes, mac: bytes, index: int, verb: Verb, sequence: int
) -> None:
    family = 2 if len(dst) == 4 else 10
    message = ndmsg()
    message["family"], message["ifindex"], message["state"] = family, index, 0x80
    message["attrs"] = [("NDA_DST", text(dst)), ("NDA_LLADDR", mac.hex(":"))]
    expected = encoded(message, 28, PUT_FLAGS, sequence) if verb == "replace" else encoded(message, 29, 1, sequence)
    assert encode(verb, Neighbour(dst, mac, family, index), sequence) == expected


@given(ADDRESSES, MACS, INDEXES, st.integers(0, 65535), st.integers(0, 2**24 - 1), VERBS, U32)
def test_a_forwarding_entry_is_encoded_as_pyroute2_does(
    dst: bytes, mac: bytes, index: int, port: int, vni: int, verb: Verb, sequence: int
) -> None:
    message = ndmsg()
    message["family"], message["ifindex"], message["state"], message["flags"] = 7, index, 0x80, 0x02
    message["attrs"] = [("NDA_LLADDR", mac.hex(":")), ("NDA_DST", text(dst))]
    message["attrs"] += [("NDA_PORT", port)] if port else []
    message["attrs"] += [("NDA_VNI", vni)] if vni else []
    expected = encoded(message, 28, PUT_FLAGS, sequence) if verb == "replace" else encoded(message, 29, 1, sequence)
    assert encode(verb, FdbEntry(mac, dst, index, port, vni), sequence) == expected


def test_attributes_without_a_field_are_put_as_they_came() -> None:
    plain = Route(bytes(4), b"", 3, uapi.AF_INET, 8, 7, 4)
    source = struct.pack("=HH4s", 8, uapi.RTA_PREFSRC, bytes((10, 0, 0, 1)))
    with_source = encode("replace", plain._replace(rest=source), 9)
    without = encode("replace", plain, 9)
    assert with_source == struct.pack("=I", len(without) + 8) + without[4:] + source


def test_a_route_by_nexthop_object_names_only_the_object() -> None:
    bare = Route(bytes(4), b"", 3, uapi.AF_INET, 8, 0, 4, rest=struct.pack("=HHI", 8, uapi.RTA_NH_ID, 5))
    as_dumped = bare._replace(gateway=b"\1\2\3\4", ifindex=7)
    assert encode("del", as_dumped, 9) == encode("del", bare, 9)


def objects(count: int) -> list[KernelObject]:
    return [Neighbour(n.to_bytes(4), bytes(2) + n.to_bytes(4), uapi.AF_INET, 7) for n in range(1, count + 1)]


def test_batches_hold_at_most_16_kib_and_keep_order_and_numbers() -> None:
    everything = objects(1000)
    made = list(batches("replace", everything, 500))
    assert [each for batch in made for each in batch.objects] == everything
    assert all(len(batch.data) <= BATCH_BYTES for batch in made)
    assert len(made) == 3
    for batch in made:
        headers = [struct.unpack_from("=IHHII", batch.data, 48 * n) for n in range(len(batch.objects))]
        assert [header[3] for header in headers] == list(range(batch.first, batch.first + len(batch.objects)))
        assert [header[2] for header in headers] == [PUT_FLAGS] * (len(headers) - 1) + [PUT_FLAGS | uapi.NLM_F_ACK]
    assert [batch.first for batch in made] == [500, 500 + len(made[0].objects), 1500 - len(made[2].objects)]


def of_few_shapes(size: int) -> st.SearchStrategy[KernelObject]:
    """With addresses of this size."""
    family, dst, device = st.just(2 if size == 4 else 10), of_size(size), st.integers(1, 3)
    lengths, gateways = st.integers(8, 10), st.just(b"") | dst
    routes = st.tuples(dst, gateways, st.integers(1, 9), family, lengths, device, st.just(77))
    return (
        routes.map(lambda fields: Route(*fields))
        | st.tuples(dst, MACS, family, device).map(lambda fields: Neighbour(*fields))
        | st.tuples(MACS, gateways, device).map(lambda fields: FdbEntry(*fields))
    )


@given(st.lists(SIZES.flatmap(of_few_shapes), min_size=1, max_size=30, unique=True), VERBS)
def test_objects_of_any_shapes_are_each_encoded_once_as_if_alone(some: list[KernelObject], verb: Verb) -> None:
    kinds = sorted(each.kind for each in some)
    made = list(batches(verb, sorted(some, key=lambda each: each.kind), 7))
    told = [each for batch in made for each in batch.objects]
    assert [each.kind for each in told] == kinds
    assert sorted(told) == sorted(some)
    (batch,) = made  # thirty are no 16 KiB
    *others, last = (encode(verb, each, number) for number, each in enumerate(told, batch.first))
    flags = struct.pack("=H", struct.unpack_from("=H", last, 6)[0] | uapi.NLM_F_ACK)
    assert (batch.first, batch.data) == (7, b"".join(others) + last[:6] + flags + last[8:])


def test_nothing_makes_no_batch() -> None:
    assert list(batches("del", [], 1)) == []
