"""Questions to the kernel over netlink that block for a moment: the answer is there once the question is sent."""

import errno
import os
import socket
import struct
from collections.abc import Iterator
from typing import Final

REQUEST, ACK, DUMP = 0x1, 0x4, 0x300
"""NLM_F_REQUEST, NLM_F_ACK and NLM_F_DUMP."""
_INTERRUPTED: Final = 0x10
"""NLM_F_DUMP_INTR: the table changed while it was dumped."""
_ERROR, _DONE = 2, 3
_SOL_NETLINK, _STRICT = 270, 12
"""NETLINK_GET_STRICT_CHK: a dump of rtnetlink has only what was asked for."""
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_NESTED, _NUMBER = 0x8000, 0x3FFF
"""NLA_F_NESTED; and the bits without it and NLA_F_NET_BYTEORDER."""
_CODE: Final = struct.Struct("=i")
_LARGEST_DATAGRAM: Final = 1 << 17
_SECONDS: Final = 2.0
_ATTEMPTS: Final = 5


def message(kind: int, body: bytes, flags: int = REQUEST) -> bytes:
    """Makes a message with the sequence number 1."""
    return _HEADER.pack(_HEADER.size + len(body), kind, flags, 1, 0) + body


def messages(datagram: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yields type, flags and content of each message in a datagram."""
    start = 0
    while start + _HEADER.size <= len(datagram):
        length, kind, flags, _, _ = _HEADER.unpack_from(datagram, start)
        yield kind, flags, datagram[start + _HEADER.size : start + length]
        start += max(length + 3 & ~3, _HEADER.size)


def open_netlink(protocol: int) -> socket.socket:
    """Opens a socket for `exchange`. Raises OSError."""
    made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    try:
        made.settimeout(_SECONDS)
        made.bind((0, 0))
        if protocol == socket.NETLINK_ROUTE:
            made.setsockopt(_SOL_NETLINK, _STRICT, 1)
    except BaseException:
        made.close()
        raise
    return made


def exchange(kernel: socket.socket, request: bytes) -> Iterator[tuple[int, bytes]]:
    """Sends a request, or a batch that has one answer; yields type and content of each message that answers it.

    Raises OSError: the kernel refuses or does not answer; InterruptedError after the last message of a dump whose
    table changed meanwhile, so that something may be missing or told twice.
    """
    kernel.send(request)
    is_dump, is_interrupted = next(messages(request))[1] & DUMP == DUMP, False
    while True:
        for kind, flags, content in messages(kernel.recv(_LARGEST_DATAGRAM)):
            is_interrupted |= bool(flags & _INTERRUPTED)
            if kind not in (_ERROR, _DONE):
                yield kind, content
                continue
            code = -_CODE.unpack_from(content)[0] if len(content) >= _CODE.size else 0
            if code > 0:
                raise OSError(code, os.strerror(code))
            if is_interrupted:
                raise InterruptedError(errno.EINTR, "the table changed while it was read")
            return
        if not is_dump:
            return


def ask(protocol: int, kind: int, body: bytes, flags: int = 0) -> list[tuple[int, bytes]]:
    """Returns type and content of each message that answers a request. Raises OSError.

    A dump that was interrupted is asked for again; after the last attempt, what there was is returned.
    """
    for _ in range(_ATTEMPTS):
        found = list[tuple[int, bytes]]()
        with open_netlink(protocol) as kernel:
            try:
                for each in exchange(kernel, message(kind, body, REQUEST | flags)):
                    found.append(each)
            except InterruptedError:
                continue
        break
    return found


def attribute(number: int, value: bytes, *, nested: bool = False) -> bytes:
    """Makes one attribute, padded to a multiple of 4 bytes."""
    number |= _NESTED if nested else 0
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), number) + value + bytes(-len(value) % 4)


def attributes(data: bytes) -> dict[int, bytes]:
    """Reads netlink attributes by number; nested ones stay bytes, to be read in the same way."""
    return dict(attribute_list(data))


def attribute_list(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yields netlink attributes in their order, also several of one number."""
    start = 0
    while start + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, start)
        yield kind & _NUMBER, data[start + _ATTRIBUTE.size : start + length]
        start += max(length + 3 & ~3, _ATTRIBUTE.size)


def text(value: bytes) -> str:
    """A string as the kernel writes it."""
    return value.rstrip(b"\0").decode(errors="replace")
