"""A capture as a pcapng file (draft-ietf-opsawg-pcapng), as Wireshark and tcpdump read it. Pure.

All interfaces have one link type, Linux cooked mode v2, as of `tcpdump -i any`: libpcap reads
no file with several.
"""

import struct
from collections.abc import Iterable
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb

_SECTION, _INTERFACE, _PACKET = 0x0A0D0D0A, 1, 6
_COOKED: Final = struct.Struct("!HHIHBB8s")
"""LINKTYPE_LINUX_SLL2, which has the interface and the direction of a packet."""
_LINK_TYPE: Final = 276
_BYTE_ORDER: Final = 0x1A2B3C4D
_NAME, _DESCRIPTION, _RESOLUTION, _FLAGS, _PROGRAM = 2, 3, 9, 2, 4
"""Options of interfaces, of packets and of the section."""
_OUTGOING: Final = 4


def header(interfaces: Iterable[pb.CaptureInterface], program: str) -> bytes:
    """What a file begins with."""
    section = struct.pack("=IHHq", _BYTE_ORDER, 1, 0, -1) + _options({_PROGRAM: program.encode()})
    blocks = [_block(_SECTION, section)]
    for each in interfaces:
        options = {_NAME: each.name.encode(), _DESCRIPTION: each.role.encode(), _RESOLUTION: bytes([9])}
        blocks.append(_block(_INTERFACE, struct.pack("=HHI", _LINK_TYPE, 0, 0) + _options(options)))
    return b"".join(blocks)


def block(packet: pb.CapturedPacket, interface: pb.CaptureInterface) -> bytes:
    """Encodes one packet as a block of the file."""
    cooked = _COOKED.pack(
        packet.protocol & 0xFFFF,
        0,
        interface.index,
        packet.hardware_type & 0xFFFF,
        packet.packet_type & 0xFF,
        min(len(packet.link_address), 8),
        packet.link_address[:8],
    )
    data, time = cooked + packet.data, packet.time.ToNanoseconds()
    numbers = packet.interface, time >> 32, time & 0xFFFFFFFF, len(data), len(cooked) + packet.length
    flags = struct.pack("=I", 2 if packet.packet_type == _OUTGOING else 1)
    return _block(_PACKET, struct.pack("=IIIII", *numbers) + _padded(data) + _options({_FLAGS: flags}))


def _block(kind: int, body: bytes) -> bytes:
    length = struct.pack("=I", len(body) + 12)
    return struct.pack("=I", kind) + length + body + length


def _options(values: dict[int, bytes]) -> bytes:
    written = (struct.pack("=HH", code, len(value)) + _padded(value) for code, value in values.items())
    return b"".join(written) + bytes(4)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
