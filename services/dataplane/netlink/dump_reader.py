"""One dump of the kernel over netlink: what receives it, and when it is asked for again."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from typing import Final, TypeVar

from flannelette.services.core.errors import Unavailable
from flannelette.services.dataplane.netlink.iproute2_text import refusal
from flannelette.services.dataplane.netlink.raw_socket import AnswersLost, NetlinkTransport
from flannelette.services.dataplane.netlink.uapi import (
    HEADER,
    NLM_F_DUMP_INTR,
    NLMSG_DONE,
    NLMSG_ERROR,
    KernelError,
    error_in,
    numbered,
)

ANY_REFUSAL: Final = range(1, 4096)
"""Every errno."""
_ATTEMPTS: Final = 10


class DumpReader(ABC):
    """Takes the datagrams that answer the request with this number; a subclass reads the messages in them."""

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.inconsistent = False
        """Something is missing, or the table changed while the kernel wrote it out (NLM_F_DUMP_INTR): ask again."""
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
