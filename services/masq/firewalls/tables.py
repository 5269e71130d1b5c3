"""The legacy tables of this network namespace, looked at without iptables and without making them."""

import ctypes
import errno
import os
import socket
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from services.core.errors import Unavailable
from services.core.family import Family

_GET_INFO, _GET_ENTRIES = 64, 65  # IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES; the same numbers for IPv6
_INFO: Final = struct.Struct("=32s I 5I 5I I I")  # struct ipt_getinfo: name, hooks, entries, underflows, number, size
_EMPTY_ENTRIES: Final = {"filter": 4, "nat": 5, "mangle": 6, "raw": 3, "security": 4}
"""A policy for each of the kernel's chains, and the end."""
_HEADER: Final = 40  # struct ipt_get_entries: name[32], size, padding to the 8 bytes of a counter
_COUNTERS_SIZE: Final = 16
_TARGET_SIZE: Final = 32  # struct xt_entry_target, before the verdict of a standard one
_ACCEPT: Final = -2  # -NF_ACCEPT - 1
_FORWARD: Final = 2  # NF_INET_FORWARD
_NAMES_SIZE: Final = 4096
_ATTEMPTS: Final = 5

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the tables of a family look like (linux/netfilter_ipv4/ip_tables.h, ...ipv6/ip6_tables.h)."""

    names: str
    level: int
    next_offset: int
    counters: int


_LAYOUTS: Final = {
    4: _Layout("ip_tables_names", socket.IPPROTO_IP, 90, 96),
    6: _Layout("ip6_tables_names", socket.IPPROTO_IPV6, 142, 152),
}


def existing_tables(family: Family) -> frozenset[str]:
    """The tables that somebody has used in this network namespace. Asking the kernel for another would make it.

    Raises Unavailable: only root may know.
    """
    try:  # in three calls of the kernel, where Python's own files take eight: it is done all the time
        descriptor = os.open(f"/proc/thread-self/net/{_LAYOUTS[family.version].names}", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return frozenset()  # the module is not loaded: nobody uses any
    except PermissionError:
        raise Unavailable(
            "the kernel tells only root which tables there are: run it as root, with the capabilities NET_ADMIN and "
            "NET_RAW"
        ) from None
    try:
        return frozenset(os.read(descriptor, _NAMES_SIZE).decode().split())
    finally:
        os.close(descriptor)


class Fingerprints:
    """Says what a family's tables look like, in a few microseconds, so that a change is seen by comparing.

    Only a getsockopt or two: no lock, no library, no process. Everything counts but the packet counters.
    """

    def __init__(self, family: Family) -> None:
        self._layout = _LAYOUTS[family.version]
        self._family = family
        self._socket: socket.socket | None = None
        self._buffers: dict[str, bytearray] = {}
        """By table: its last reading. Kept, because fresh memory costs as much as the reading."""
        self._masks: dict[str, int] = {}
        """By table: ones, with zeros where the counters are; made for a buffer of the size of the last one."""

        self._names: dict[tuple[str, tuple[str, ...]], tuple[_Information, frozenset[str]]] = {}
        """What was mentioned, and what the table was like then."""

    @property
    def version(self) -> int:
        """4 or 6."""
        return self._family.version

    def take(self, tables: frozenset[str]) -> "Fingerprint":
        """Of those of these tables that exist. Raises Unavailable."""
        found = sorted(tables & existing_tables(self._family))
        return tuple((name, self._masked(name)) for name in found)

    def outline(self) -> "Outline":
        """What is another one when a table comes, or its rules move. Raises Unavailable.

        Cheaper than `take` where there are many rules. What it does not see: a rule or a chain in the place of
        another one of the same size.
        """
        return tuple(
            (name, self._information(name), name in _EMPTY_ENTRIES and self._is_empty(name) and self._passes(name))
            for name in sorted(existing_tables(self._family))
        )

    def mentions(self, table: str, chain: str) -> bool:
        """Whether the table exists and has a chain of this name. Raises Unavailable."""
        return bool(self.mentioned(table, (chain,)))

    def mentioned(self, table: str, chains: Iterable[str]) -> frozenset[str]:
        """Of these names, those of chains in the table. Reads it again only if its outline is another one."""
        if table not in existing_tables(self._family):
            return frozenset()
        key = (table, tuple(chains))
        information = self._information(table)
        if key not in self._names or self._names[key][0] != information:
            entries = self._read(table)
            self._names[key] = (information, frozenset(c for c in key[1] if b"\0" + c.encode() + b"\0" in entries))
        return self._names[key][1]

    def has_rules(self) -> bool:
        """Whether any table has more than the kernel's chains that let everything pass. Raises Unavailable."""
        there = existing_tables(self._family) & _EMPTY_ENTRIES.keys()
        return any(not self._is_empty(name) or not self._passes(name) for name in there)

    def forwards(self) -> bool:
        """Whether the policy of FORWARD lets everything pass. Raises Unavailable."""
        return "filter" not in existing_tables(self._family) or self._policies("filter")[_FORWARD]

    def close(self) -> None:
        """Frees the socket."""
        if self._socket:
            self._socket.close()

    def _read(self, table: str) -> bytearray:
        """The kernel's entries of a table, behind a header. Atomic; again when its size changed between the calls."""
        for _ in range(_ATTEMPTS):
            size = self._information(table)[-1]
            buffer = self._buffers.get(table)
            if buffer is None or len(buffer) != _HEADER + size:
                self._masks.pop(table, None)
                buffer = self._buffers[table] = bytearray(_HEADER + size)
            struct.pack_into("=32s I", buffer, 0, table.encode(), size)
            try:
                return self._ask(_GET_ENTRIES, buffer)
            except BlockingIOError:
                continue
        raise Unavailable(f"{self._family} table {table} changes faster than it can be read")

    def _is_empty(self, table: str) -> bool:
        """Whether it has the kernel's chains only, without a rule."""
        number: int = self._information(table)[-2]
        return number <= _EMPTY_ENTRIES[table]

    def _passes(self, table: str) -> bool:
        """Whether every policy lets everything pass."""
        return all(self._policies(table).values())

    def _information(self, table: str) -> "_Information":
        """Where its chains of the kernel begin and end, then the number of entries and their size."""
        return _INFO.unpack(self._ask(_GET_INFO, bytearray(table.encode().ljust(_INFO.size, b"\0"))))

    def _policies(self, table: str) -> dict[int, bool]:
        """By hook of the kernel: whether what no rule has decided about passes."""
        _, hooks, *rest = self._information(table)
        underflows = rest[5:10]
        entries = self._read(table)
        return {
            hook: self._verdict(entries, _HEADER + underflows[hook]) == _ACCEPT
            for hook in range(len(underflows))
            if hooks >> hook & 1
        }

    def _verdict(self, entries: bytearray, start: int) -> int:
        target = start + struct.unpack_from("=H", entries, start + self._layout.next_offset - 2)[0]
        verdict: int = struct.unpack_from("=i", entries, target + _TARGET_SIZE)[0]
        return verdict

    def _ask(self, option: int, buffer: bytearray) -> bytearray:
        if self._socket is None:
            try:
                af = socket.AddressFamily(self._family.af)
                self._socket = socket.socket(af, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW)
            except PermissionError:
                raise Unavailable("legacy iptables needs CAP_NET_RAW: give it to the service") from None
        # Python's own getsockopt cannot pass the name of a table in.
        length = ctypes.c_uint32(len(buffer))
        memory = (ctypes.c_char * len(buffer)).from_buffer(buffer)
        if _libc.getsockopt(self._socket.fileno(), self._layout.level, option, memory, ctypes.byref(length)):
            code = ctypes.get_errno()
            if code == errno.EAGAIN:
                raise BlockingIOError
            raise Unavailable(
                f"cannot read the legacy {self._family} tables: {os.strerror(code)}; "
                "run the service as root with CAP_NET_ADMIN and CAP_NET_RAW"
            )
        return buffer

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


_Information = tuple[Any, ...]
Outline = tuple[tuple[str, _Information, bool], ...]
Fingerprint = tuple[tuple[str, int], ...]
"""By existing table; equal if no rule, chain or policy differs."""
