"""A raw NETLINK_ROUTE socket in asyncio: batches out, refusals and dumps in."""

import asyncio
import ctypes
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from errno import EACCES, EAFNOSUPPORT, ENOBUFS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT
from typing import Final, Protocol

from flannelette.services.core.errors import Unavailable
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.uapi import HEADER, KernelError, error_in, messages

ANSWER_SECONDS: Final = 5.0
"""The kernel answers within the very system call that asks; later than this, something is very wrong."""
_RECEIVE_BYTES: Final = 64 * 1024
"""More than the kernel ever puts into one datagram (32 KiB)."""
_KINDS: Final = {uapi.NETLINK_ROUTE: "rtnetlink", uapi.NETLINK_XFRM: "xfrm", uapi.NETLINK_GENERIC: "generic netlink"}
_NO_SUCH_PROTOCOL: Final = (EAFNOSUPPORT, EOPNOTSUPP, EPROTONOSUPPORT)
QUEUE_BYTES: Final = 4 * 1024 * 1024
"""For answers: each refusal takes about 832 bytes of it, and a batch has up to 500 messages."""


class AnswersLost(Exception):
    """The kernel dropped answers (ENOBUFS): what came of the request is not known."""


class NoSuchProtocol(Unavailable):
    """The kernel has no netlink of this kind."""


class NetlinkTransport(Protocol):
    """What `KernelSocket` needs of a socket; `RawTransport` says what each call does."""

    @property
    def port(self) -> int: ...  # noqa: D102 - see RawTransport, also below
    def close(self) -> None: ...  # noqa: D102
    def reserve(self, count: int) -> int: ...  # noqa: D102
    async def exchange(self, batch: bytes, first: int, last: int) -> Mapping[int, KernelError]: ...  # noqa: D102
    async def dump(self, request: bytes, take: Callable[[bytes], bool]) -> None: ...  # noqa: D102


class RawTransport:
    """One socket; requests take turns. Sending and the kernel's work happen inside one call that does not yield.

    Raises Unavailable when the kernel does not answer at all, or gives no socket.
    """

    def __init__(
        self,
        *,
        queue_bytes: int = QUEUE_BYTES,
        answer_seconds: float = ANSWER_SECONDS,
        protocol: int = uapi.NETLINK_ROUTE,
    ) -> None:
        self._lock = asyncio.Lock()
        self._sequence = 1
        self._answer_seconds = answer_seconds
        self._socket = open_netlink(protocol)
        for option in (uapi.NETLINK_EXT_ACK, uapi.NETLINK_CAP_ACK, uapi.NETLINK_GET_STRICT_CHK):
            self._socket.setsockopt(uapi.SOL_NETLINK, option, 1)
        enlarge_queue(self._socket, queue_bytes)
        self._socket.bind((0, 0))

    @property
    def port(self) -> int:
        """The port id of the socket, which the kernel writes into the events that we cause."""
        port: int = self._socket.getsockname()[0]
        return port

    def close(self) -> None:
        """Closes the socket, after which nothing can be sent."""
        self._socket.close()

    def reserve(self, count: int) -> int:
        """The first of `count` sequence numbers that nobody else uses."""
        if self._sequence + count >= 2**32:
            self._sequence = 1
        first = self._sequence
        self._sequence += count
        return first

    async def exchange(self, batch: bytes, first: int, last: int) -> dict[int, KernelError]:
        """Sends messages numbered `first` to `last`, of which the last asks for an acknowledgement.

        Returns the refused ones by number, once the answer to the last one is here: then the kernel has done
        all of them, for it works in order. Raises AnswersLost.
        """
        async with self._lock:
            self._send(batch)
            refusals: dict[int, KernelError] = {}
            while True:
                for sequence, refusal in _answers(await self._receive()):
                    if first <= sequence <= last and refusal is not None:
                        refusals[sequence] = refusal
                    if sequence == last:
                        return refusals

    async def ask(self, batch: bytes, first: int, last: int) -> dict[int, bytes | KernelError]:
        """Sends requests numbered `first` to `last`, each of which has one answer: a message, or why not.

        Raises AnswersLost.
        """
        async with self._lock:
            self._send(batch)
            answers: dict[int, bytes | KernelError] = {}
            while len(answers) <= last - first:
                for block in messages(await self._receive()):
                    _, kind, _, sequence, _ = HEADER.unpack_from(block)
                    if first <= sequence <= last:
                        is_error = kind == uapi.NLMSG_ERROR
                        answers[sequence] = (error_in(block, 0) or KernelError(0, "")) if is_error else block
            return answers

    async def dump(self, request: bytes, take: Callable[[bytes], bool]) -> None:
        """Sends a dump request and hands each datagram to `take` until that says it was the last.

        The loop runs between datagrams. Raises AnswersLost.
        """
        async with self._lock:
            self._send(request)
            complete = False
            try:
                while not complete:
                    complete = take(await self._receive())
                    await asyncio.sleep(0)
            except BaseException:
                drain(self._socket)  # the kernel refuses another dump (EBUSY) while this one is unfinished
                raise

    def _send(self, data: bytes) -> None:
        try:
            self._socket.send(data)
        except OSError as error:
            if error.errno != ENOBUFS:
                raise
            raise AnswersLost from None  # out of memory: it did not even get there

    async def _receive(self) -> bytes:
        try:
            try:
                return self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                async with asyncio.timeout(self._answer_seconds):
                    return await asyncio.get_running_loop().sock_recv(self._socket, _RECEIVE_BYTES)
        except TimeoutError:
            raise Unavailable(
                f"the kernel did not answer a netlink request within {self._answer_seconds:g} s"
            ) from None
        except OSError as error:
            if error.errno != ENOBUFS:
                raise
            drain(self._socket)  # what is left belongs to the same request
            raise AnswersLost from None


def open_netlink(protocol: int) -> socket.socket:
    """A socket that does not block. Raises NoSuchProtocol, Unavailable."""
    try:
        opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
    except OSError as error:
        what = f"{_KINDS[protocol]} ({error.strerror})"
        if error.errno in _NO_SUCH_PROTOCOL:
            raise NoSuchProtocol(f"the kernel has no {what}: is this a sandbox, such as gVisor?") from None
        cause = ": does a seccomp profile or SELinux forbid it?" if error.errno in (EACCES, EPERM) else ""
        raise Unavailable(f"the kernel refuses {what}{cause}") from None
    opened.setblocking(False)
    return opened


def enlarge_queue(opened: socket.socket, size: int) -> None:
    """Makes the receive queue this big, or, without the right to exceed net.core.rmem_max, as big as that."""
    try:
        opened.setsockopt(socket.SOL_SOCKET, uapi.SO_RCVBUFFORCE, size)
    except PermissionError:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, size)


def drain(opened: socket.socket) -> None:
    """Throws away whatever waits in the receive queue."""
    while True:
        try:
            opened.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != ENOBUFS:
                raise


def _answers(datagram: bytes) -> Iterator[tuple[int, KernelError | None]]:
    for block in messages(datagram):
        _, kind, _, sequence, _ = HEADER.unpack_from(block)
        if kind == uapi.NLMSG_ERROR:
            yield sequence, error_in(block, 0)


_SO_ATTACH_FILTER: Final = 26
_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_EVERYTHING: Final = 0xFFFF_FFFF
_PORT_AT: Final = 12

Instruction = tuple[int, int, int, int]
"""Code, how many to skip if it is true, and if not, operand."""


def ignore(opened: socket.socket, port: int) -> None:
    """Filters out what the socket with this port id does, as far as that is told."""
    _attach(
        opened,
        (
            (_LOAD_WORD, 0, 0, _PORT_AT),
            (_JUMP_IF_EQUAL, 1, 0, _in_network_order("=I", port)),
            (_RETURN, 0, 0, _EVERYTHING),
            (_RETURN, 0, 0, 0),
        ),
    )


def _in_network_order(layout: str, value: int) -> int:
    """A number that lies there in host order, as BPF reads it."""
    return int.from_bytes(struct.pack(layout, value), "big")


def _attach(opened: socket.socket, program: Sequence[Instruction]) -> None:
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *instruction) for instruction in program))
    opened.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(program), ctypes.addressof(code)))
