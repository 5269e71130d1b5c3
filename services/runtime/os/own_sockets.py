"""The TCP sockets of this process, and how to shut one down that a library has.

The C library is called with the interpreter's lock held, and addresses stay bytes. A look at thousands of sockets
would else give the lock away with each call, and take a second where other threads want it too: just when it has to
be quick.
"""

import ctypes
import socket
import sys
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, NamedTuple

_C: Final = ctypes.PyDLL(None)
_LINK: Final = b"socket:["
_MAPPED: Final = bytes(10) + b"\xff\xff"
_STATUS: Final = Path("/proc/thread-self/status")
_LONGEST: Final = 128
"""Bytes of struct sockaddr_storage."""


class Address(NamedTuple):
    """One end of a TCP socket."""

    host: bytes
    """Four bytes for IPv4, also where the socket is of IPv6; else sixteen."""
    port: int

    def __str__(self) -> str:
        return str(ip_address(self.host))


def sockets() -> Iterator[tuple[int, int]]:
    """Descriptor and inode of each open socket: 2 µs for each descriptor that there may be."""
    _, _, rest = _STATUS.read_text().partition("FDSize:")
    for descriptor in range(int(rest.split(maxsplit=1)[0])):
        if (inode := inode_of(descriptor)) is not None:
            yield descriptor, inode


def inode_of(descriptor: int) -> int | None:
    """Inode of a descriptor's socket; None: it is no open socket."""
    text = ctypes.create_string_buffer(40)
    length = _C.readlink(b"/proc/thread-self/fd/%d" % descriptor, text, 40)
    return int(text.raw[8 : length - 1]) if text.raw[:8] == _LINK else None


def is_listening(descriptor: int) -> bool:
    """Whether connections are accepted on it."""
    value, size = ctypes.c_int(), ctypes.c_uint(4)
    failed = _C.getsockopt(
        descriptor, socket.SOL_SOCKET, socket.SO_ACCEPTCONN, ctypes.byref(value), ctypes.byref(size)
    )
    return not failed and bool(value.value)


def local(descriptor: int) -> Address | None:
    """Local address of a socket; None: it is not of IP, or is gone."""
    return _address(_C.getsockname, descriptor)


def peer(descriptor: int) -> Address | None:
    """Address of the other end; None: the socket is not connected."""
    return _address(_C.getpeername, descriptor)


def shut_down(descriptor: int, inode: int) -> bool:
    """Shuts the socket down, so that whose it is closes it; returns whether it still existed."""
    return inode_of(descriptor) == inode and not _C.shutdown(descriptor, socket.SHUT_RDWR)


def packed(host: str) -> bytes:
    """Address.host of a text. Raises ValueError."""
    found = ip_address(host).packed
    return found[12:] if found.startswith(_MAPPED) else found


def _address(ask: Any, descriptor: int) -> Address | None:
    text, size = ctypes.create_string_buffer(_LONGEST), ctypes.c_uint(_LONGEST)
    if ask(descriptor, text, ctypes.byref(size)):
        return None
    raw = text.raw
    family, port = int.from_bytes(raw[:2], sys.byteorder), int.from_bytes(raw[2:4])
    if family == socket.AF_INET:
        return Address(raw[4:8], port)
    if family == socket.AF_INET6:
        host = raw[8:24]
        return Address(host[12:] if host.startswith(_MAPPED) else host, port)
    return None
