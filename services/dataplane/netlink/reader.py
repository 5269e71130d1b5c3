"""Reads a dump: most messages of a dump look alike, so the first one teaches where everything lies.

The general way walks the attributes of each message (about 10 µs). The fast way (under 1 µs) unpacks a whole
message at once by a layout learned from an earlier one with the same header, and checks that every byte that is
not a value of the object is as it was there; if one is not, the general way decides.
"""

import struct
from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from services.dataplane.netlink import uapi
from services.dataplane.netlink.attributes import spans
from services.dataplane.netlink.dump import Kind, fields_of
from services.dataplane.netlink.objects import FdbEntry, Neighbour, Route
from services.dataplane.netlink.page import NUMBER, Page, Run, page_of
from services.dataplane.netlink.transport import Refusal, error_in

T = TypeVar("T", Route, Neighbour, FdbEntry)

_HEADER: Final = struct.Struct("=IHHII")
_MOST_RUNS: Final = 32
"""In a datagram of some hundred messages: where hardly two are of one form, to know them again is no gain."""


class Reader(Generic[T]):
    """Takes the datagrams that answer one request, collects its objects.

    One that `is_marked` also remembers what they said: it costs CPU, so it is for those that will ask again.
    """

    def __init__(self, kind: Kind[T], sequence: int, *, is_marked: bool = False) -> None:
        self.sequence = sequence
        self.found: list[T] = []
        self.inconsistent = False
        """The table changed while the kernel wrote it out (NLM_F_DUMP_INTR): ask again."""
        self.refusal: Refusal | None = None
        self.pages: list[Page] = []
        """What the datagrams said, to know it again; none if that is not possible, not worth it or not wanted."""
        self._runs: list[Run] = []
        self._is_known = is_marked
        self._kind: Kind[T] = kind
        self._header_size = 16 + kind.header.size
        self._layouts: dict[bytes, _Layout] = {}

    def take(self, block: bytes) -> bool:
        """Reads one datagram; True: the dump is complete, or refused."""
        self._runs.clear()
        is_complete = self._read(block)
        self._is_known &= len(self._runs) <= _MOST_RUNS and not self.inconsistent and self.refusal is None
        if self._is_known:
            self.pages.append(page_of(block, self._runs))
        else:
            self.pages.clear()
        return is_complete

    def _read(self, block: bytes) -> bool:
        offset, end = 0, len(block)
        while offset + 16 <= end:
            length, message_type, flags, sequence, _ = _HEADER.unpack_from(block, offset)
            if length < 16 or offset + length > end:
                self.inconsistent = True  # cut off, so something is missing
                return False
            if sequence == self.sequence:
                self.inconsistent |= bool(flags & uapi.NLM_F_DUMP_INTR)
                if message_type in (uapi.NLMSG_DONE, uapi.NLMSG_ERROR):
                    self.refusal = error_in(block, offset)
                    self._runs.append(Run(offset, 1, length))
                    return True
                if message_type == self._kind.message_type:
                    offset = self.take_alike(block, offset, length)
                    continue
            self._is_known = False
            offset += (length + 3) & ~3
        return False

    def take_alike(self, block: bytes, offset: int, length: int) -> int:
        """Reads the message there, and those behind it that look alike; returns where the next one is."""
        layout = self._layouts.get(block[offset : offset + self._header_size])
        if layout is not None and (count := layout.read(block, offset, self.found)):
            self._runs.append(Run(offset, count, layout.size, layout.volatile))
            return offset + count * layout.size
        self._learn(block, offset, length)
        return offset + ((length + 3) & ~3)

    def _learn(self, block: bytes, offset: int, length: int) -> None:
        """Reads one message the general way."""
        kind = self._kind
        start = offset + self._header_size
        walked = list(spans(block, start, offset + length))
        fields = fields_of(kind, block, offset, walked)
        values = (range(first - offset, last - offset) for a, first, last in walked if a in kind.ignored)
        volatile = tuple(chain(NUMBER, *values))
        self._runs.append(Run(offset, 1, length, volatile))
        built = kind.build(fields)
        if built is None:
            return
        self.found.append(built)
        if not fields["rest"] and walked and (walked[-1][2] + 3) & ~3 == offset + length:
            self._layouts[block[offset:start]] = _Layout(kind, block, offset, walked, built, volatile)


class _Layout:
    """Where everything lies in a message like the one that it was learned from."""

    def __init__(
        self,
        kind: Kind[Any],
        block: bytes,
        offset: int,
        walked: Sequence[tuple[int, int, int]],
        built: tuple[Any, ...],
        volatile: tuple[int, ...],
    ) -> None:
        self.volatile = volatile
        """As in Run."""
        layout, names = "=", [""]
        fixed = 16 + kind.header.size
        for attribute, first, last in walked:
            fixed += 4  # length and type of the attribute
            size, padding = last - first, -(last - first) % 4
            name = kind.numbers.get(attribute) or kind.blobs.get(attribute, "")
            if name in kind.made._fields:
                layout += f"{fixed}s" + ("I" if attribute in kind.numbers else f"{size}s")
                names += [name, ""]
                fixed = padding
            elif attribute in kind.ignored:
                layout += f"{fixed}s{size + padding}x"
                names.append("")
                fixed = 0
            else:
                fixed += size + padding
        self._struct = struct.Struct(f"{layout}{fixed}s")
        values = [names.index(field) if field in names else None for field in kind.made._fields]
        # A field that is no attribute here has the value that it had there.
        self._constants = tuple(value for value, place in zip(built, values, strict=True) if place is None)
        places = iter(range(len(names), len(names) + len(self._constants)))
        self._pick = itemgetter(*(next(places) if place is None else place for place in values))
        self._fixed = itemgetter(*(index for index, name in enumerate(names) if not name))
        self._expected = self._fixed(self._struct.unpack_from(block, offset))
        self.size = self._struct.size
        self._made = kind.made

    def read(self, block: bytes, offset: int, found: list[Any]) -> int:
        """Adds the objects of as many messages as look alike; returns how many."""
        fixed, expected, pick, constants = self._fixed, self._expected, self._pick, self._constants
        made, new, size = self._made, tuple.__new__, self.size
        end = offset + (len(block) - offset) // size * size
        before = len(found)
        for fields in self._struct.iter_unpack(memoryview(block)[offset:end]):
            if fixed(fields) != expected:
                break
            found.append(new(made, pick(fields + constants)))
        return len(found) - before
