"""The legacy tables of this network namespace, looked at without iptables and without making them."""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import Any, Final

from services.core.errors import Unavailable
from services.core.family import Family
from services.masq.firewalls.evidence import Buffer, Evidence
from services.masq.firewalls.table_names import TableNames
from services.masq.foreign.legacy import read_legacy
from services.masq.foreign.verdict import ForeignTable, is_used

_GET_INFO, _GET_ENTRIES = 64, 65  # IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES; the same numbers for IPv6
_INFO: Final = struct.Struct("=32s I 5I 5I I I")  # struct ipt_getinfo: name, hooks, entries, underflows, number, size
_EMPTY_ENTRIES: Final = {"filter": 4, "nat": 5, "mangle": 6, "raw": 3, "security": 4}
"""A policy for each of the kernel's chains, and the end."""
_HEADER: Final = 40  # struct ipt_get_entries: name[32], size, padding to the 8 bytes of a counter
_COUNTERS_SIZE: Final = 16
_ATTEMPTS: Final = 5
_MOST_ENTRIES: Final = 1000
"""Of a table whose rules are read: a thousand take about 10 ms."""
_SMALL: Final = 1 << 16
"""Bytes: some hundred rules, read in a few microseconds."""

_libc = ctypes.CDLL(None)
_libc_with_errno = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the tables of a family look like (linux/netfilter_ipv4/ip_tables.h, ...ipv6/ip6_tables.h)."""

    level: int
    next_offset: int
    counters: int


_LAYOUTS: Final = {
    4: _Layout(socket.IPPROTO_IP, 90, 96),
    6: _Layout(socket.IPPROTO_IPV6, 142, 152),
}


class Fingerprints:
    """Says what a family's tables look like, in a few microseconds, so that a change is seen by comparing.

    Only a getsockopt or two: no lock, no library, no process. Everything counts but the packet counters. May be asked
    by several threads.
    """

    def __init__(self, family: Family) -> None:
        self._layout = _LAYOUTS[family.version]
        self._family = family
        self._turn = RLock()
        self._socket: socket.socket | None = None
        self._names = TableNames(family)
        self._informations: dict[str, Buffer] = {}
        self._entries: dict[str, Buffer] = {}
        """By table: its last reading. Kept, because fresh memory costs as much as the reading."""
        self._masks: dict[str, int] = {}
        """By table: ones, with zeros where the counters are; made for a buffer of the size of the last one."""

        self._mentioned: dict[tuple[str, tuple[str, ...]], tuple[_Information, frozenset[str]]] = {}
        """What was mentioned, and what the table was like then."""

    @property
    def version(self) -> int:
        """4 or 6."""
        return self._family.version

    def take(self, tables: frozenset[str]) -> "Fingerprint":
        """Of those of these tables that exist. Raises Unavailable."""
        with self._turn:
            return tuple((name, self._masked(name)) for name in self._names.now() if name in tables)

    def outline(self, tables: Container[str] = _EMPTY_ENTRIES) -> "Outline":
        """What is another one when one of these tables comes, or its rules move. Raises Unavailable.

        Takes no longer where there are many rules. What it does not see there: a rule or a chain in the place of
        another one of the same size.
        """
        with self._turn:
            return tuple((name, *self._outlined(name)) for name in self._names.now() if name in tables)

    def witness(self, tables: Container[str] = _EMPTY_ENTRIES, *, most: int = _SMALL) -> Callable[[], bool]:
        """Says from now on, in any thread, whether one of these tables is other than now, or whether one has come.

        Tables of at most so many bytes are compared whole, of others where the kernel's chains begin and end. In one
        call of the kernel for each, and one more unless there are all of them, for somebody who asks all the time.
        Not after `close`. Raises Unavailable, now and then.
        """
        with self._turn:
            names = self._names.now()
            evidence = [self._evidence(name, most=most) for name in names if name in tables]
        may_come = any(name not in names for name in _EMPTY_ENTRIES if name in tables)

        def is_other() -> bool:
            with self._turn:  # the answers have one place
                if may_come and self._names.now() != names:
                    return True
                return any(each.is_other() for each in evidence)

        return is_other

    def are_small(self, tables: Container[str] = _EMPTY_ENTRIES) -> bool:
        """Whether a witness compares these tables whole. Raises Unavailable."""
        with self._turn:
            return all(self._information(name)[-1] <= _SMALL for name in self._names.now() if name in tables)

    def movement(self, tables: frozenset[str]) -> Callable[[], bool]:
        """Says from now on, in one thread, whether the kernel's chains begin or end elsewhere in one of these tables.

        As a witness does, for somebody who asks about every second: where there are all of the tables it takes no
        lock, which would cost as much as the kernel's answer.
        """
        with self._turn:
            if not tables.issubset(self._names.now()):
                return self.witness(tables, most=0)
            questions = [self._evidence(table, most=0).question for table in sorted(tables)]

        def is_other() -> bool:
            for ask, content, last in questions:  # noqa: SIM110 - half of the cost is code that was not run for long
                if ask() or content != last:
                    return True
            return False

        return is_other

    def names(self) -> tuple[str, ...]:
        """Of the tables that there are. Raises Unavailable."""
        with self._turn:
            return self._names.now()

    def mentions(self, table: str, chain: str) -> bool:
        """Whether the table exists and has a chain of this name. Raises Unavailable."""
        return bool(self.mentioned(table, (chain,)))

    def mentioned(self, table: str, chains: Iterable[str]) -> frozenset[str]:
        """Of these names, those of chains in the table. Reads it again only if its outline is another one."""
        with self._turn:
            if table not in self._names.now():
                return frozenset()
            key = (table, tuple(chains))
            information = self._information(table)
            if key not in self._mentioned or self._mentioned[key][0] != information:
                entries = self._read(table)
                there = frozenset(chain for chain in key[1] if b"\0" + chain.encode() + b"\0" in entries)
                self._mentioned[key] = (information, there)
            return self._mentioned[key][1]

    def has_rules(self) -> bool:
        """Whether any table has more than the kernel's chains that let everything pass. Raises Unavailable."""
        with self._turn:
            there = [name for name in self._names.now() if name in _EMPTY_ENTRIES]
            return any(not _is_empty(name, self._information(name)) or is_used(self._table(name)) for name in there)

    def tables(self, names: Container[str] = _EMPTY_ENTRIES) -> list[ForeignTable]:
        """Those of these tables that exist, with their rules. Raises Unavailable."""
        with self._turn:
            return [self._table(name) for name in self._names.now() if name in names]

    def close(self) -> None:
        """Frees the sockets, when no question is being answered."""
        with self._turn:
            self._names.close()
            if self._socket:
                self._socket.close()

    def _outlined(self, table: str) -> tuple["_Information", int]:
        """Of a small table all that it has."""
        information = self._information(table)
        return information, self._masked(table) if information[-1] <= _SMALL else 0

    def _evidence(self, table: str, *, most: int) -> Evidence:
        information = self._information(table)
        if information[-1] <= most:
            option, expected = _GET_ENTRIES, self._masked(table)
            buffer, mask = self._entries[table], self._masks[table]
        else:
            option, buffer, mask = _GET_INFO, self._informations[table], -1
            expected = int.from_bytes(buffer.content, "little")
        own = Buffer(bytearray(buffer.content))
        question = map(ctypes.c_int, (self._descriptor(), self._layout.level, option))
        ask = partial(_libc.getsockopt, *question, own.address, own.length)
        return Evidence(ask, own.content, mask, expected)

    def _read(self, table: str) -> bytearray:
        """The kernel's entries of a table, behind a header. Atomic; the kernel refuses another size than its own."""
        for _ in range(_ATTEMPTS):
            try:
                if table in self._entries:
                    return self._ask(_GET_ENTRIES, self._entries[table])
            except BlockingIOError:
                pass
            size = self._information(table)[-1]
            self._masks.pop(table, None)
            buffer = self._entries[table] = Buffer(bytearray(_HEADER + size))
            struct.pack_into("=32s I", buffer.content, 0, table.encode(), size)
        raise Unavailable(f"{self._family} table {table} changes faster than it can be read")

    def _table(self, name: str) -> ForeignTable:
        for _ in range(_ATTEMPTS):
            information = self._information(name)
            _, hooks, *places, number, _ = information
            entries = bytes(memoryview(self._read(name))[_HEADER:])
            if self._information(name) == information:
                starts = [places[hook] if hooks >> hook & 1 else None for hook in range(5)]
                is_whole = number <= _MOST_ENTRIES
                return read_legacy(self.version, name, entries, starts, places[5:10], is_whole=is_whole)
        raise Unavailable(f"{self._family} table {name} changes faster than it can be read")

    def _information(self, table: str) -> "_Information":
        """Where its chains of the kernel begin and end, then the number of entries and their size."""
        if table not in self._informations:
            self._informations[table] = Buffer(bytearray(table.encode().ljust(_INFO.size, b"\0")))
        return _INFO.unpack(self._ask(_GET_INFO, self._informations[table]))

    def _ask(self, option: int, buffer: Buffer) -> bytearray:
        # Python's own getsockopt cannot pass the name of a table in.
        if _libc_with_errno.getsockopt(self._descriptor(), self._layout.level, option, buffer.address, buffer.length):
            code = ctypes.get_errno()
            if code == errno.EAGAIN:
                raise BlockingIOError
            raise Unavailable(
                f"cannot read the legacy {self._family} tables: {os.strerror(code)}; "
                "run the service as root with CAP_NET_ADMIN and CAP_NET_RAW"
            )
        return buffer.content

    def _descriptor(self) -> int:
        if self._socket is None:
            try:
                af = socket.AddressFamily(self._family.af)
                self._socket = socket.socket(af, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW)
            except PermissionError:
                raise Unavailable("legacy iptables needs CAP_NET_RAW: give it to the service") from None
            except OSError as error:
                raise Unavailable(f"cannot read the legacy {self._family} tables: {error.strerror}") from None
        return self._socket.fileno()

    def _masked(self, table: str) -> int:
        """The entries as one number, with zeros for the counters.

        A mask is made once for a size. Should the layout change and the size stay, the offsets inside differ
        from before at a place that the old mask shows: the change is seen all the same.
        """
        buffer = self._read(table)
        mask = self._masks.get(table)
        if mask is None:
            mask = self._masks[table] = self._mask(buffer)
        return int.from_bytes(buffer, "little") & mask

    def _mask(self, buffer: bytearray) -> int:
        mask = bytearray(b"\xff" * len(buffer))
        start = _HEADER
        while start < len(buffer):
            at = start + self._layout.counters
            mask[at : at + _COUNTERS_SIZE] = bytes(_COUNTERS_SIZE)
            start += struct.unpack_from("=H", buffer, start + self._layout.next_offset)[0]
        return int.from_bytes(mask, "little")


def _is_empty(table: str, information: "_Information") -> bool:
    """Whether it has the kernel's chains only, without a rule."""
    number: int = information[-2]
    return number <= _EMPTY_ENTRIES.get(table, 0)


_Information = tuple[Any, ...]
Outline = tuple[tuple[str, _Information, int], ...]
Fingerprint = tuple[tuple[str, int], ...]
"""By existing table; equal if no rule, chain or policy differs."""
