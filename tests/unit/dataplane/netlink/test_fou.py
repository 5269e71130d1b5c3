"""FOU ports: their messages, what a dump and a link say of them, and their words."""

import struct

from flannelette.services.core.family import IPV4
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.fou import FouRow, PortReader, encode, port_in_link
from flannelette.services.dataplane.netlink.kinds import command, kind_of, text
from flannelette.services.dataplane.netlink.objects import FouPort, Plan, steps
from tests.examples.dataplane import route

PORT = FouPort(bytes((10, 99, 0, 11)), 8285, 7)
FAMILY = 30


def attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def row(*more: bytes, protocol: int = 4, local: bytes = PORT.local, kind: int = 1, family: int = IPV4.af) -> bytes:
    """A message of a dump, as Linux 6.1 writes it."""
    body = struct.pack("=BBH", 1, 1, 0) + b"".join(
        (
            attribute(2, bytes([family])),
            attribute(1, (8285).to_bytes(2)),
            attribute(10, bytes(2)),
            attribute(3, bytes([protocol])),
            attribute(4, bytes([kind])),
            attribute(11, bytes(4)),
            attribute(6, local),
            attribute(8, bytes(4)),
            *more,
        )
    )
    return uapi.HEADER.pack(16 + len(body), FAMILY, 2, 9, 0) + body


def rows(*messages: bytes) -> list[FouRow]:
    reader = PortReader(FAMILY, 9)
    done = uapi.HEADER.pack(20, uapi.NLMSG_DONE, 2, 9, 0) + bytes(4)
    assert not reader.take(b"".join(messages))
    assert reader.take(done)
    return reader.rows


def test_a_port_is_put_with_everything_that_the_kernel_asks_for() -> None:
    assert encode(FAMILY, 1, PORT).hex(" ", 4) == (
        "3c000000 1e000500 00000000 00000000 01010000 06000100 205d0000 05000200 02000000 05000300 04000000 "
        "05000400 01000000 08000600 0a63000b"
    )


def test_a_dump_tells_ours_from_others() -> None:
    assert [each.is_like(PORT) for each in rows(row(), row(protocol=47), row(local=bytes(4)), row(kind=2))] == [
        True,
        False,
        False,
        False,
    ]
    (bound,) = rows(row(attribute(11, struct.pack("=i", 3))))
    assert not bound.is_like(PORT), "it takes packets of one device only"
    assert rows(row(family=10)) == []
    told = [str(each) for each in rows(row(), row(protocol=47, local=bytes(4)), row(kind=2))]
    assert told == [
        "port 8285 ipproto 4 local 10.99.0.11",
        "port 8285 ipproto 47",
        "port 8285 gue local 10.99.0.11",
    ]


def link(kind: bytes = b"ipip\0", encap: int = 1, *, with_local: bool = True) -> bytes:
    local = attribute(2, PORT.local) if with_local else b""
    data = local + attribute(15, struct.pack("=H", encap)) + attribute(18, (8285).to_bytes(2))
    info = attribute(18, attribute(1, kind) + attribute(2, data))
    return bytes(32) + attribute(3, b"flannel.fou\0") + info


def test_a_port_is_ours_by_the_device_that_sends_from_it() -> None:
    assert port_in_link(link(), 7) == PORT
    assert port_in_link(link(b"gre\0"), 7) is None
    assert port_in_link(link(encap=0), 7) is None
    assert port_in_link(bytes(32), 7) is None


def test_the_words_are_iproute2s_and_a_port_is_there_before_a_route_leads_to_it() -> None:
    assert (kind_of(PORT).label, text(PORT, {})) == ("fou", "port 8285 ipproto 4 local 10.99.0.11")
    assert command("replace", PORT, {}) == "ip fou add port 8285 ipproto 4 local 10.99.0.11"
    assert command("del", PORT, {}) == "ip fou del port 8285 ipproto 4 local 10.99.0.11"
    other = route("10.5.53.0/24 via 10.5.53.0 dev flannel.1")
    assert next(iter(steps(Plan(frozenset((other, PORT)), frozenset()))))[1] == [PORT, other]
