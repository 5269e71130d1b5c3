"""ICMP echo as bytes."""

import struct
from ipaddress import ip_address

import pytest

from flannelette.services.core.family import FAMILIES, IPV4, IPV6, Family
from flannelette.services.dataplane.probes.sockets import REQUEST, Echo, Reply, echo_in, reply, request, too_large_in

REPLIES = {IPV4: 0, IPV6: 129}
IP_HEADER = {IPV4: 20, IPV6: 40}


def answer(family: Family, packet: bytes, *, options: int = 0) -> bytes:
    """What a raw socket of the sender receives when a host answers the request."""
    icmp = bytes((REPLIES[family], 0)) + packet[2:]
    if family is IPV6:
        return icmp
    return bytes((0x45 + options,)) + bytes(19 + 4 * options) + icmp


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("size", [0, 100, 1450, 1451])
def test_a_reply_is_known_by_its_request(family: Family, size: int) -> None:
    packet = request(family, 7, 0x0123456789ABCDEF, 0xFFFE, size)
    found = reply(family, answer(family, packet), 7, 0x0123456789ABCDEF)
    assert found == Reply(0xFFFE, max(size, IP_HEADER[family] + 16))


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_what_is_not_ours_is_no_reply(family: Family) -> None:
    packet = request(family, 7, 1, 5, 0)
    good = answer(family, packet)
    assert reply(family, good, 8, 1) is None
    assert reply(family, good, 7, 2) is None
    assert reply(family, good[:-1], 7, 1) is None
    assert reply(family, good + b"more", 7, 1) is None
    assert reply(family, b"", 7, 1) is None
    start = len(good) - len(packet)
    for type_, code in ((3, 0), (REPLIES[family], 1), (packet[0], 0)):
        assert reply(family, good[:start] + bytes((type_, code)) + good[start + 2 :], 7, 1) is None


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_request_is_known_where_it_arrives(family: Family) -> None:
    """Its identifier may be another by then."""
    header = bytes((0x45,)) + bytes(19) if family is IPV4 else b""
    packet = header + request(family, 0x1234, 1 << 40, 0xFFFF, 100)
    assert echo_in(family, packet) == Echo(REQUEST[family.version], 0x1234, 0xFFFF, 1 << 40, 100)
    assert echo_in(family, packet[:-1] + b"?") is None


def test_an_ip_header_with_options_is_skipped() -> None:
    packet = request(IPV4, 7, 1, 5, 0)
    assert reply(IPV4, answer(IPV4, packet, options=2), 7, 1) == Reply(5, 44)


@pytest.mark.parametrize("size", [0, 99, 1450])
def test_the_checksum_of_ipv4_is_that_of_rfc_1071(size: int) -> None:
    packet = request(IPV4, 0xFFFF, 0xFFFFFFFFFFFFFFFF, 3, size)
    padded = packet + bytes(len(packet) % 2)
    total = sum(struct.unpack(f"!{len(padded) // 2}H", padded))
    assert total % 0xFFFF == 0


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_a_router_tells_the_destination_and_what_passes_and_nothing_else_is_taken_for_it(family: Family) -> None:
    there = ip_address("10.99.0.12" if family is IPV4 else "fd00:99::12")
    inner = bytes(16 if family is IPV4 else 24) + there.packed
    told = struct.pack("!BBHHH", 3, 4, 0, 0, 1400) if family is IPV4 else struct.pack("!BBHI", 2, 0, 0, 1400)
    header = bytes((0x46,)) + bytes(23) if family is IPV4 else b""
    packet = header + told + inner
    assert too_large_in(family, packet) == (there, 1400)
    assert too_large_in(family, packet + bytes(8)) == (there, 1400)
    assert all(too_large_in(family, packet[:end]) is None for end in range(len(packet)))
    for kind, code in ((3, 1), (1, 0), (11, 0), (2, 1)):
        assert too_large_in(family, header + bytes((kind, code)) + told[2:] + inner) is None
