"""Messages of nftables over netlink (linux/netfilter/nf_tables.h): a socket, and what comes out of it in pieces."""

import os
import socket
import struct
from collections.abc import Iterator, Mapping
from typing import Final

from services.core.errors import Unavailable

NETFILTER: Final = 12  # NETLINK_NETFILTER
SUBSYSTEM: Final = 10 << 8  # NFNL_SUBSYS_NFTABLES
REQUEST, DUMP = 1, 0x300
_SOL_NETLINK, _ADD_MEMBERSHIP = 270, 1
_ERROR, _DONE = 2, 3
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NFGENMSG: Final = 4
_NUMBER: Final = 0x3FFF  # of an attribute, without NLA_F_NESTED and NLA_F_NET_BYTEORDER


def open_socket(group: int = 0) -> socket.socket:
    """For questions, or to listen to a multicast group. Raises Unavailable."""
    try:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, NETFILTER)
        made.bind((0, 0))
        if group:
            made.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, group)
    except OSError as error:
        raise Unavailable(
            f"the kernel has no netfilter netlink ({os.strerror(error.errno or 0)}): `modprobe nfnetlink`"
        ) from None
    return made


def question(kind: int, flags: int = REQUEST, family: int = 0, about: Mapping[int, str] | None = None) -> bytes:
    """A message that asks about everything, or what has this address family (not 0) and these attributes."""
    body = bytes((family, 0, 0, 0)) + b"".join(_attribute(number, value) for number, value in (about or {}).items())
    return _HEADER.pack(_HEADER.size + len(body), SUBSYSTEM | kind, flags, 1, 0) + body


def messages(data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Number within nftables, address family and attributes of each message; the number is -1 at the end of a dump.

    Raises OSError: the kernel's answer to a question.
    """
    start = 0
    while start + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, start)
        body = data[start + _HEADER.size : start + length]
        if kind == _ERROR:
            code = -struct.unpack_from("=i", body)[0]
            raise OSError(code, os.strerror(code))
        if kind == _DONE:
            yield -1, 0, b""
        elif kind & ~0xFF == SUBSYSTEM:
            yield kind & 0xFF, body[0], body[_NFGENMSG:]
        start += max(length + 3 & ~3, _HEADER.size)


def attributes(data: bytes) -> dict[int, bytes]:
    """By their number; what they nest is bytes to be read again."""
    return dict(attribute_list(data))


def attribute_list(data: bytes) -> Iterator[tuple[int, bytes]]:
    """In their order, also those of one number."""
    start = 0
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        yield kind & _NUMBER, data[start + _ATTRIBUTE.size : start + length]
        start += max(length + 3 & ~3, _ATTRIBUTE.size)


def _attribute(number: int, value: str) -> bytes:
    data = value.encode() + b"\0"
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), number) + data + bytes(-len(data) % 4)


def text(value: bytes) -> str:
    """A string as the kernel writes it."""
    return value.rstrip(b"\0").decode(errors="replace")
