"""Reads pcapng files, by the specification alone (draft-ietf-opsawg-pcapng, LINKTYPE_LINUX_SLL2)."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Seen:
    """A packet in a file."""

    interface: str
    is_outgoing: bool
    data: bytes
    """From the IP header on, as far as it was captured."""
    length: int
    nanoseconds: int


def ends(data: bytes) -> tuple[str, str, int]:
    """Source, destination and protocol of an IP packet."""
    if data[0] >> 4 == 4:
        return str(ip_address(data[12:16])), str(ip_address(data[16:20])), data[9]
    return str(ip_address(data[8:24])), str(ip_address(data[24:40])), data[6]


def read(file: Path) -> list[Seen]:
    """The packets of a file, which may still grow."""
    return list(_packets(file.read_bytes())) if file.exists() else []


def _packets(document: bytes) -> Iterator[Seen]:
    names = list[str]()
    for number, (kind, body) in enumerate(_blocks(document)):
        if number == 0:
            magic, major, minor, length = struct.unpack_from("<IHHq", body)
            assert (kind, magic, major, minor, length) == (0x0A0D0D0A, 0x1A2B3C4D, 1, 0, -1)
        elif kind == 1:
            link_type, reserved, snap_length = struct.unpack_from("<HHI", body)
            assert (link_type, reserved, snap_length) == (276, 0, 0)
            options = dict(_options(body[8:]))
            assert options[9] == b"\x09"  # nanoseconds
            names.append(options[2].decode())
        else:
            assert kind == 6
            interface, high, low, captured, whole = struct.unpack_from("<IIIII", body)
            data = body[20 : 20 + captured]
            ((_, flags),) = _options(body[20 + captured + -captured % 4 :])
            protocol, _, _, _, packet_type, address_length = struct.unpack_from("!HHIHBB", data)
            assert protocol in (0x0800, 0x86DD)
            assert address_length in (0, 4, 6, 16)
            is_outgoing = packet_type == 4
            assert int.from_bytes(flags, "little") == (2 if is_outgoing else 1)
            yield Seen(names[interface], is_outgoing, data[20:], whole - 20, high << 32 | low)


def _blocks(document: bytes) -> Iterator[tuple[int, bytes]]:
    while len(document) >= 12:
        kind, length = struct.unpack_from("<II", document)
        if length > len(document):
            return  # it is being written
        assert length % 4 == 0
        assert struct.unpack_from("<I", document, length - 4) == (length,)
        yield kind, document[8 : length - 4]
        document = document[length:]


def _options(data: bytes) -> Iterator[tuple[int, bytes]]:
    while True:
        code, length = struct.unpack_from("<HH", data)
        if code == 0:
            assert data == bytes(4)
            return
        yield code, data[4 : 4 + length]
        data = data[4 + length + -length % 4 :]
