"""ICMP echo requests and replies as bytes (RFC 792, RFC 4443). Pure."""

import struct
from typing import Final, NamedTuple

from flannelette.services.core.family import IPV4, Family

_HEADER: Final = struct.Struct("!BBHHH")
_TOKEN: Final = struct.Struct("!Q")
REQUEST: Final = {4: 8, 6: 128}
"""ICMP types by IP version."""
REPLY: Final = {4: 0, 6: 129}
_IP_HEADER: Final = {4: 20, 6: 40}
SMALLEST: Final = _HEADER.size + _TOKEN.size
"""Bytes of the shortest request, without the IP header."""


class Reply(NamedTuple):
    """An echo reply to one of our requests."""

    sequence: int
    size: int
    """Bytes of the IP packet."""


def request(family: Family, identifier: int, token: int, sequence: int, size: int) -> bytes:
    """An echo request that makes an IP packet of `size` bytes, or the smallest that there is.

    The checksum is there for IPv4 only: of ICMPv6 the kernel computes it.
    """
    filling = bytes(max(0, size - _IP_HEADER[family.version] - SMALLEST))
    body = _TOKEN.pack(token) + filling
    kind = REQUEST[family.version]
    sum_ = _checksum(_HEADER.pack(kind, 0, 0, identifier, sequence) + body) if family is IPV4 else 0
    return _HEADER.pack(kind, 0, sum_, identifier, sequence) + body


def reply(family: Family, packet: bytes, identifier: int, token: int) -> Reply | None:
    """What a raw socket has received; None: no reply to a request of ours.

    A raw socket of IPv4 gives the IP header too, one of IPv6 does not.
    """
    start = (packet[0] & 0x0F) * 4 if family is IPV4 and packet else 0
    if len(packet) < start + SMALLEST:
        return None
    kind, code, _, theirs, sequence = _HEADER.unpack_from(packet, start)
    if (kind, code, theirs) != (REPLY[family.version], 0, identifier):
        return None
    if _TOKEN.unpack_from(packet, start + _HEADER.size) != (token,):
        return None
    return Reply(sequence, len(packet) + (0 if family is IPV4 else _IP_HEADER[family.version]))


def round_trip_of(sent: float, arrived: float, elapsed: float) -> float:
    """Seconds between two times of the wall clock, or `elapsed` if that clock was stepped between.

    `elapsed` is what the monotonic clock says when the reply is read: never less than the round trip.
    """
    return arrived - sent if 0 <= arrived - sent <= elapsed else elapsed


def _checksum(data: bytes) -> int:
    """Computes the Internet checksum of RFC 1071."""
    total: int = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + bytes(len(data) % 2)))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
