"""Every change of nftables has a number and a culprit: the kernel tells both (linux/netfilter/nf_tables.h)."""

import asyncio
import errno
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from threading import Lock
from typing import Final

from services.core.errors import Unavailable
from services.masq.firewalls.nftables.netlink import SUBSYSTEM, attributes, messages, open_socket, question, text

_NEWGEN, _GETGEN = 15, 16  # NFT_MSG_...
_GROUP_NFTABLES: Final = 7
_ID, _PID, _NAME = 1, 2, 3  # NFTA_GEN_ID, NFTA_GEN_PROC_PID, NFTA_GEN_PROC_NAME
_BUFFER: Final = 1 << 16
_ANSWER_SIZE: Final = 1 << 12
_QUESTION: Final = question(_GETGEN)
_USUAL: Final = struct.Struct("=4x H 16x H 4s")  # struct nlmsghdr, struct nfgenmsg, and the first attribute
_NUMBER_FIRST: Final = (SUBSYSTEM | _NEWGEN, _ID)
_SO_ATTACH_FILTER: Final = 26
_FILTER: Final = (
    # Of the messages of a transaction only the last one counts: a firewall of thousands of rules may be reloaded.
    (0x28, 0, 0, 4),  # ldh [4]: the type, whose bytes the filter sees in network order
    (0x15, 0, 1, int.from_bytes(struct.pack("=H", SUBSYSTEM | _NEWGEN), "big")),
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


class Newest:
    """The number of the newest generation, in microseconds, for any thread. Raises Unavailable: not told."""

    def __init__(self) -> None:
        self._socket = open_socket()
        self._turn = Lock()

    def number(self) -> int:
        """It grows with every transaction, whosever."""
        try:
            with self._turn:
                self._socket.send(_QUESTION)
                answer = self._socket.recv(_ANSWER_SIZE)
            kind, attribute, number = _USUAL.unpack_from(answer)
            if (kind, attribute) != _NUMBER_FIRST:
                return next(_generations(answer)).number
            return int.from_bytes(number, "big")
        except OSError as error:
            raise Unavailable(
                f"nftables does not answer: {error.strerror}; run the service as root with CAP_NET_ADMIN, and load "
                "nftables into the kernel (`modprobe nf_tables`)"
            ) from None

    def close(self) -> None:
        """Frees the socket."""
        self._socket.close()


class Generations:
    """A wait for the next generation. Raises Unavailable: the kernel does not tell."""

    def __init__(self) -> None:
        self._listen = open_socket(_GROUP_NFTABLES)
        instructions = b"".join(struct.pack("=HBBI", *instruction) for instruction in _FILTER)
        self._memory = _Memory(instructions)
        self._listen.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, self._memory.program(len(_FILTER)))
        self._listen.setblocking(False)

    async def next(self) -> tuple[Generation, ...]:
        """Those that came since the last call; none where some were missed, and with them whose they were."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return tuple(_generations(await loop.sock_recv(self._listen, _BUFFER)))
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return ()
                raise Unavailable(f"nftables does not tell its changes: {error.strerror}") from None

    def close(self) -> None:
        """Frees the socket."""
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


def _generations(data: bytes) -> Iterator[Generation]:
    for kind, _, body in messages(data):
        if kind == _NEWGEN:
            values = attributes(body)
            number, pid = (int.from_bytes(values.get(name, b""), "big") for name in (_ID, _PID))
            yield Generation(number, pid, text(values.get(_NAME, b"")))
