"""Every change of nftables has a number and a culprit: the kernel tells both (linux/netfilter/nf_tables.h)."""

import asyncio
import errno
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from services.core.errors import Unavailable

_NETFILTER: Final = 12  # NETLINK_NETFILTER
_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES = 270, 1, 7
_NEWGEN, _GETGEN = 10 << 8 | 15, 10 << 8 | 16
_REQUEST: Final = 1
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
_ID, _PID, _NAME = 1, 2, 3
_NFGENMSG: Final = 4
_BUFFER: Final = 1 << 16
_SO_ATTACH_FILTER: Final = 26
_FILTER: Final = (
    # Of the messages of a transaction only the last one counts: a firewall of thousands of rules may be reloaded.
    (0x28, 0, 0, 4),  # ldh [4]: the type, whose bytes the filter sees in network order
    (0x15, 0, 1, int.from_bytes(struct.pack("=H", _NEWGEN), "big")),
    (0x06, 0, 0, 0xFFFFFFFF),
    (0x06, 0, 0, 0),
)


@dataclass(frozen=True, slots=True)
class Generation:
    """What a transaction left."""

    number: int
    pid: int = 0
    """Of the process that did it, as the first PID namespace sees it; 0: not told."""
    name: str = ""
    """Of that process; empty: not told."""


class Generations:
    """The number of the newest generation, and a wait for the next. Raises Unavailable: the kernel does not tell."""

    def __init__(self) -> None:
        self._ask = _socket()
        self._listen = _socket()
        instructions = b"".join(struct.pack("=HBBI", *instruction) for instruction in _FILTER)
        self._memory = _Memory(instructions)
        self._listen.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, self._memory.program(len(_FILTER)))
        self._listen.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES)
        self._listen.setblocking(False)

    def newest(self) -> int:
        """The number of the newest one."""
        message = _HEADER.pack(_HEADER.size + _NFGENMSG, _GETGEN, _REQUEST, 1, 0) + bytes(_NFGENMSG)
        try:
            self._ask.send(message)
            found = next(_generations(self._ask.recv(_BUFFER)))
        except OSError as error:
            raise Unavailable(
                f"nftables does not answer: {error.strerror}; run the service as root with CAP_NET_ADMIN, and load "
                "nftables into the kernel (`modprobe nf_tables`)"
            ) from None
        return found.number

    async def next(self) -> tuple[Generation, ...]:
        """Those that came since the last call, at least one; without its process where some were missed."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return tuple(_generations(await loop.sock_recv(self._listen, _BUFFER)))
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return (Generation(self.newest()),)
                raise Unavailable(f"nftables does not tell its changes: {error.strerror}") from None

    def close(self) -> None:
        """Frees the sockets."""
        self._ask.close()
        self._listen.close()


class _Memory:
    """struct sock_fprog points to its instructions, which must live until it is read."""

    def __init__(self, instructions: bytes) -> None:
        import ctypes

        self._buffer = ctypes.create_string_buffer(instructions, len(instructions))
        self._address = ctypes.addressof(self._buffer)

    def program(self, length: int) -> bytes:
        """struct sock_fprog."""
        return struct.pack("@HP", length, self._address)


def _socket() -> socket.socket:
    try:
        made = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _NETFILTER)
    except OSError as error:
        raise Unavailable(
            f"the kernel has no netfilter netlink ({os.strerror(error.errno or 0)}): `modprobe nfnetlink`"
        ) from None
    made.bind((0, 0))
    return made


def _generations(data: bytes) -> Iterator[Generation]:
    start = 0
    while start + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, start)
        body = data[start + _HEADER.size : start + length]
        if kind == _NEWGEN:
            yield _generation(body[_NFGENMSG:])
        elif kind == 2:  # NLMSG_ERROR
            code = -struct.unpack_from("=i", body)[0]
            raise OSError(code, os.strerror(code))
        start += max(length + 3 & ~3, _HEADER.size)


def _generation(attributes: bytes) -> Generation:
    values: dict[int, bytes] = {}
    start = 0
    while start + _ATTRIBUTE.size <= len(attributes):
        length, kind = _ATTRIBUTE.unpack_from(attributes, start)
        values[kind & 0x3FFF] = attributes[start + _ATTRIBUTE.size : start + length]
        start += max(length + 3 & ~3, _ATTRIBUTE.size)
    number, pid = (int.from_bytes(values.get(kind, b""), "big") for kind in (_ID, _PID))
    return Generation(number, pid, values.get(_NAME, b"").rstrip(b"\0").decode(errors="replace"))
