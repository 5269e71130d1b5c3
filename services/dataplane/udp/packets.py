"""What the proxy of backend `udp` does to IPv4 packets: the hop limit, and ICMP errors. Pure."""

import struct
from typing import Final

SMALLEST: Final = 20
"""Bytes of an IPv4 header without options."""
_ICMP: Final = 1
_TTL: Final = 8
"""The TTL of an ICMP error, as in flannel."""
_UNREACHABLE: Final = 3
NET_UNREACHABLE: Final = 0
FRAGMENTATION_NEEDED: Final = 4


def decrement_ttl(data: bytearray, at: int = 0) -> bool:
    """Takes one hop off a packet that begins there; False: none is left, and the packet is dropped.

    Updates the checksum as RFC 1624 says.
    """
    ttl = data[at + 8]
    if ttl <= 1:
        return False
    data[at + 8] = ttl - 1
    high = data[at + 10] + 1
    if high < 0x100:
        data[at + 10] = high
    else:  # end-around carry
        low = data[at + 11] + 1
        data[at + 10], data[at + 11] = low >> 8, low & 0xFF
    return True


def icmp_error(packet: bytes, source: bytes, code: int, mtu: int = 0) -> bytes | None:
    """The answer "destination unreachable" to a packet, from this address.

    None: there is none to an ICMP packet, or to a fragment but the first (RFC 1122, 3.2.2).
    """
    header = (packet[0] & 0xF) * 4
    if packet[9] == _ICMP or (packet[6] & 0x1F) or packet[7] or len(packet) < header:
        return None
    quoted = bytes(packet[: header + 8])
    message = struct.pack("!BBHHH", _UNREACHABLE, code, 0, 0, mtu) + quoted
    message = message[:2] + checksum(message) + message[4:]
    length = SMALLEST + len(message)
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, length, 0, 0, _TTL, _ICMP, 0, source, bytes(packet[12:16]))
    return head[:10] + checksum(head) + head[12:] + message


def checksum(data: bytes) -> bytes:
    """Computes the Internet checksum of RFC 1071."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!H", ~total & 0xFFFF)
