"""ICMP echo messages (RFC 792, for IPv6 RFC 4443), to bytes and back."""

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

REPLY: Final = 0
REQUEST: Final = 8
KIND_IN_IPV6: Final = {REPLY: 129, REQUEST: 128}
"""The same there."""
_HEADER: Final = struct.Struct("!BBHHH")
_TOKEN: Final = struct.Struct("!Q")


@dataclass(frozen=True, slots=True)
class Echo:
    """An echo request or reply. The token is ours; a masquerading host may change the identifier."""

    kind: int
    identifier: int
    sequence: int
    token: int
    padding: int = 0
    """Bytes after the token, all zero, to make it large; not known of what has arrived."""

    def encode(self) -> bytes:
        """The message with its checksum."""
        body = self._body()
        empty = _HEADER.pack(self.kind, 0, 0, self.identifier, self.sequence) + body
        return _HEADER.pack(self.kind, 0, _checksum(empty), self.identifier, self.sequence) + body

    def encode_for_ipv6(self) -> bytes:
        """The message without its checksum, which the kernel fills in: it covers addresses that only it knows."""
        kind = KIND_IN_IPV6[self.kind]
        return _HEADER.pack(kind, 0, 0, self.identifier, self.sequence) + self._body()

    def _body(self) -> bytes:
        return _TOKEN.pack(self.token) + bytes(self.padding)


def decode_ipv6(message: bytes) -> Echo | None:
    """The message, which comes without an IPv6 header; None if it is not one of ours."""
    if len(message) < _HEADER.size + _TOKEN.size or any(message[_HEADER.size + _TOKEN.size :]):
        return None
    kind, _code, _sum, identifier, sequence = _HEADER.unpack_from(message)
    kinds = {number: known for known, number in KIND_IN_IPV6.items()}
    if kind not in kinds:
        return None
    return Echo(kinds[kind], identifier, sequence, *_TOKEN.unpack_from(message, _HEADER.size))


def decode(packet: bytes) -> tuple[IPv4Address, Echo] | None:
    """The source and the message in an IPv4 packet; None if it is not one of ours."""
    start = (packet[0] & 0x0F) * 4
    end = start + _HEADER.size + _TOKEN.size
    if len(packet) < end or any(packet[end:]):
        return None
    kind, _code, _sum, identifier, sequence = _HEADER.unpack_from(packet, start)
    (token,) = _TOKEN.unpack_from(packet, start + _HEADER.size)
    return IPv4Address(packet[12:16]), Echo(kind, identifier, sequence, token)


def _checksum(data: bytes) -> int:
    data += bytes(len(data) % 2)
    total: int = sum(struct.unpack(f"!{len(data) // 2}H", data))
    total = (total & 0xFFFF) + (total >> 16)
    return ~(total + (total >> 16)) & 0xFFFF
