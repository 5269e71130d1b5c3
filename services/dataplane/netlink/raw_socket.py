"""Raw netlink sockets in asyncio: batches out, refusals in; complete dumps, and the families of generic netlink."""

import asyncio
import ctypes
import socket
import struct
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from errno import EACCES, EAFNOSUPPORT, ENOBUFS, EOPNOTSUPP, EPERM, EPROTONOSUPPORT
from functools import partial
from itertools import islice
from typing import Final, Protocol, Self, TypeVar

from flannelette.services.core.errors import Unavailable
from flannelette.services.dataplane.netlink import uapi
from flannelette.services.dataplane.netlink.object_text import refusal
from flannelette.services.dataplane.netlink.uapi import (
    HEADER,
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    KernelError,
    error_in,
    messages,
    numbered,
    spans,
)

ANSWER_SECONDS: Final = 5.0
"""The kernel answers within the very system call that asks; later than this, something is very wrong."""
_RECEIVE_BYTES: Final = 64 * 1024
"""More than the kernel ever puts into one datagram (32 KiB)."""
_KINDS: Final = {uapi.NETLINK_ROUTE: "rtnetlink", uapi.NETLINK_XFRM: "xfrm", uapi.NETLINK_GENERIC: "generic netlink"}
_NO_SUCH_PROTOCOL: Final = (EAFNOSUPPORT, EOPNOTSUPP, EPROTONOSUPPORT)
QUEUE_BYTES: Final = 4 * 1024 * 1024
"""Bytes of the queue for answers: each refusal takes about 832 of them, and a batch has up to 500 messages."""


LOST: Final = "the kernel's answer was lost, so whether it is done is not known: the next resync will tell"


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


class Closing(ABC):
    """What has `close`, as a context manager."""

    @abstractmethod
    def close(self) -> None:
        """Closes what it has open, for good."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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


T = TypeVar("T")


async def applied(
    transport: NetlinkTransport, changes: Iterable[tuple[T, bytes]], at_once: int
) -> dict[T, KernelError | None]:
    """What was refused of changes, each with its message without a number, so many in one send; None: the answer was
    lost (see LOST).
    """
    refused, rest = dict[T, KernelError | None](), iter(changes)
    while some := list(islice(rest, at_once)):
        first = transport.reserve(len(some))
        data = b"".join(numbered(message, number) for number, (_, message) in enumerate(some, first))
        try:
            answers = await transport.exchange(data, first, first + len(some) - 1)
        except AnswersLost:
            refused.update((item, None) for item, _ in some)
            continue
        refused.update((some[number - first][0], why) for number, why in answers.items())
        await asyncio.sleep(0)
    return refused


ANY_REFUSAL: Final = range(1, 4096)
"""All errnos that the kernel may answer with."""
_ATTEMPTS: Final = 10


class DumpReader(ABC):
    """Takes the datagrams that answer the request with this number; a subclass reads the messages in them."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.inconsistent = False
        """Part of the dump is missing, or the table changed while the kernel wrote it out (NLM_F_DUMP_INTR): ask
        again."""
        self.refusal: KernelError | None = None

    def take(self, block: bytes) -> bool:
        """Reads one datagram; True: the dump is complete, or refused."""
        offset, size = 0, len(block)
        while offset + HEADER.size <= size:
            length, kind, flags, sequence, _ = HEADER.unpack_from(block, offset)
            end = offset + length
            if length < HEADER.size or end > size:
                self.inconsistent = True  # cut off
                return False
            following = None
            if sequence == self.sequence:
                self.inconsistent |= bool(flags & NLM_F_DUMP_INTR)
                if kind in (NLMSG_DONE, NLMSG_ERROR):
                    self.refusal = error_in(block, offset)
                    return True
                following = self.read(kind, block, offset, end)
            offset = following or (end + 3) & ~3
        return False

    @abstractmethod
    def read(self, kind: int, block: bytes, offset: int, end: int) -> int | None:
        """Reads the message that lies there; returns where the next one is, if it has read more than this one."""


R = TypeVar("R", bound=DumpReader)


async def dumped(
    transport: NetlinkTransport, request: bytes, make: Callable[[int], R], attempts: int = _ATTEMPTS
) -> R:
    """What a request without its number brings, in the reader that `make` makes for a number.

    Asks again, after a growing pause, while that is inconsistent. After the last attempt the reader has what there
    was, and nothing if the kernel dropped answers.
    """
    for attempt in range(attempts):
        await asyncio.sleep(attempt / 100)
        reader = make(transport.reserve(1))
        try:
            await transport.dump(numbered(request, reader.sequence), reader.take)
        except AnswersLost:
            reader = make(reader.sequence)
            reader.inconsistent = True
        if not reader.inconsistent:
            break
    return reader


async def complete(
    transport: NetlinkTransport, request: bytes, make: Callable[[int], R], what: str, nowhere: Container[int] = ()
) -> R:
    """`dumped`, if that is all of `what`, or the kernel has refused it for one of the reasons (errno) in `nowhere`.

    Raises Unavailable.
    """
    reader = await dumped(transport, request, make)
    if reader.refusal is not None and reader.refusal.error not in nowhere:
        why = refusal(reader.refusal.error, reader.refusal.detail)
        raise Unavailable(f"the kernel does not list its {what}: {why}")
    if reader.inconsistent:
        raise Unavailable(f"the kernel's {what} kept changing while they were read: try again")
    return reader


GENL: Final = struct.Struct("=BBH")
"""struct genlmsghdr: command, version, two bytes without a meaning."""
_CONTROL: Final = 16
"""GENL_ID_CTRL: the family that tells the numbers of the others."""
_GET_FAMILY, _FAMILY_ID, _FAMILY_NAME = 3, 1, 2


async def find_family(transport: RawTransport, name: str) -> int:
    """The number; 0: the kernel has no such family, or has not loaded its module. Raises Unavailable.

    By a dump of all families: to ask for one by its name would have its module loaded.
    """
    request = uapi.request(_CONTROL, GENL.pack(_GET_FAMILY, 1, 0), uapi.NLM_F_DUMP)
    reader = partial(FamilyReader, name)
    return (await complete(transport, request, reader, "families of generic netlink", ANY_REFUSAL)).number


class FamilyReader(DumpReader):
    """Finds a family in a dump of all."""

    def __init__(self, name: str, sequence: int) -> None:
        super().__init__(sequence)
        self.number = 0
        self._name = name.encode() + b"\0"

    def read(self, kind: int, block: bytes, offset: int, end: int) -> None:
        """See DumpReader."""
        found = {key: block[first:last] for key, first, last in spans(block, offset + HEADER.size + GENL.size, end)}
        if found.get(_FAMILY_NAME) == self._name:
            self.number = int.from_bytes(found.get(_FAMILY_ID, b""), sys.byteorder)
