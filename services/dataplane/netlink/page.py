"""Whether a dump says what an earlier one said, without reading it.

Datagram by datagram, all bytes must be the same but for the number of the request and for statistics (when a
neighbour was last used). Where these lie the other bytes say, so that the places known from the earlier datagram are
those of the later one too, if all others are the same.
"""

import struct
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

from services.dataplane.netlink import uapi

NUMBER: Final = range(8, 12)
"""Which bytes of a message are the number of the request."""
_HEADER: Final = struct.Struct("=IHHII")
_ENDS: Final = (uapi.NLMSG_DONE, uapi.NLMSG_ERROR)


class Run(NamedTuple):
    """Messages of one form, one behind the other."""

    start: int
    """Where in the datagram."""
    messages: int
    size: int
    """Of each, in bytes."""
    volatile: Sequence[int] = NUMBER
    """Which bytes of each do not count."""

    def slices(self) -> Iterator[slice]:
        """For each byte that does not count, that byte of every message."""
        last = self.start + (self.messages - 1) * self.size
        return (slice(self.start + byte, last + byte + 1, self.size) for byte in self.volatile)


class Page(NamedTuple):
    """What a datagram has said."""

    size: int
    runs: tuple[Run, ...]
    digest: bytes

    def is_like(self, block: bytes) -> bool:
        """Whether another one says the same."""
        return len(block) == self.size and _digest(block, self.runs) == self.digest


def page_of(block: bytes, runs: Sequence[Run]) -> Page:
    """Of a datagram, which consists of these runs."""
    return Page(len(block), tuple(runs), _digest(block, runs))


class Likeness:
    """Takes the datagrams that answer one request, and holds them against what an earlier one was answered with."""

    def __init__(self, pages: Sequence[Page], sequence: int) -> None:
        self.holds = bool(pages)
        """All were alike so far."""
        self._pages = pages
        self._number = struct.pack("=I", sequence)
        self._taken = 0

    def take(self, block: bytes) -> bool:
        """Looks at one datagram; True: the dump is complete, or refused."""
        if self.holds:
            page = self._pages[self._taken]
            self._taken += 1
            self.holds = block[NUMBER.start : NUMBER.stop] == self._number and page.is_like(block)
        return self._taken == len(self._pages) if self.holds else _is_last(block)


def _digest(block: bytes, runs: Sequence[Run]) -> bytes:
    counted = bytearray(block)
    for run in runs:
        nothing = bytes(run.messages)
        for places in run.slices():
            counted[places] = nothing
    return blake2b(counted, digest_size=16).digest()


def _is_last(block: bytes) -> bool:
    offset = 0
    while offset + 16 <= len(block):
        length, kind, _, _, _ = _HEADER.unpack_from(block, offset)
        if kind in _ENDS:
            return True
        offset += max(length + 3 & ~3, 16)
    return False
