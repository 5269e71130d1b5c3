"""The attributes of a netlink message: type, length, value, each padded to four bytes (RFC 3549)."""

import struct
from collections.abc import Iterator
from typing import Final

from services.dataplane.netlink.uapi import NLA_TYPE_MASK

_HEADER: Final = struct.Struct("=HH")


def spans(block: bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Type, and where the value starts and ends, of each attribute in `block[start:end]`; stops at a broken one."""
    while start + 4 <= end:
        length, kind = _HEADER.unpack_from(block, start)
        if length < 4 or start + length > end:
            return
        yield kind & NLA_TYPE_MASK, start + 4, start + length
        start += (length + 3) & ~3


def attributes(block: bytes) -> Iterator[tuple[int, bytes]]:
    """Type and value of each attribute in `block`."""
    for kind, start, end in spans(block, 0, len(block)):
        yield kind, block[start:end]
