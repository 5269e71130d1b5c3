"""ICMP echo requests and replies as bytes (RFC 792, RFC 4443). Pure."""

import struct
from typing import Final, NamedTuple

from flannelette.services.core.family import IPV4, Family
from flannelette.services.dataplane.udp.packets import checksum

_HEADER: Final = struct.Struct("!BBHHH")
_TOKEN: Final = struct.Struct("!Q")
REQUEST: Final = {4: 8, 6: 128}
"""ICMP types by IP version."""
REPLY: Final = {4: 0, 6: 129}
_IP_HEADER: Final = {4: 20, 6: 40}
SMALLEST: Final = _HEADER.size + _TOKEN.size
"""Bytes of the shortest request, without the IP header."""


class Echo(NamedTuple):
    """An echo request or reply. The token is its sender's; a host that masquerades may change the identifier."""

    kind: int
    """As in REQUEST and REPLY."""
    identifier: int
    sequence: int
    token: int
    size: int
    """Bytes of the IP packet."""


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
    message = _HEADER.pack(REQUEST[family.version], 0, 0, identifier, sequence) + _TOKEN.pack(token) + filling
    return message[:2] + checksum(message) + message[4:] if family is IPV4 else message


def echo_in(family: Family, packet: bytes) -> Echo | None:
    """What a raw socket has received; None: not a request as `request` makes it, nor a reply to one.

    A raw socket of IPv4 gives the IP header too, one of IPv6 does not.
    """
    start = (packet[0] & 0x0F) * 4 if family is IPV4 and packet else 0
    end = start + SMALLEST
    if len(packet) < end or any(packet[end:]):
        return None
    kind, code, _, identifier, sequence = _HEADER.unpack_from(packet, start)
    if code or kind not in (REQUEST[family.version], REPLY[family.version]):
        return None
    (token,) = _TOKEN.unpack_from(packet, start + _HEADER.size)
    size = len(packet) + (0 if family is IPV4 else _IP_HEADER[family.version])
    return Echo(kind, identifier, sequence, token, size)


def reply(family: Family, packet: bytes, identifier: int, token: int) -> Reply | None:
    """Returns what `echo_in` finds, if it is a reply to a request with these numbers."""
    found = echo_in(family, packet)
    if found is None or found[:2] != (REPLY[family.version], identifier) or found.token != token:
        return None
    return Reply(found.sequence, found.size)


def round_trip_of(sent: float, arrived: float, elapsed: float) -> float:
    """Seconds between two times of the wall clock, or `elapsed` if that clock was stepped between.

    `elapsed` is what the monotonic clock says when the reply is read: never less than the round trip.
    """
    return arrived - sent if 0 <= arrived - sent <= elapsed else elapsed
