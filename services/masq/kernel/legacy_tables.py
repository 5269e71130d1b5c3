"""The legacy tables of this network namespace, read with getsockopt, without iptables and without creating them, and
the lock of all programs that change them: flock(2) on one file, as iptables itself does it.
"""

import ctypes
import errno
import fcntl
import os
import signal
import socket
import stat
import struct
from collections.abc import Hashable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import Family
from flannelette.services.core.frozen import frozen

TABLES: Final = ("filter", "mangle", "nat", "raw", "security")
_NAMES_SIZE: Final = 4096
_NAMES_FILES: Final = {4: "ip_tables_names", 6: "ip6_tables_names"}
_GET_INFO, _GET_ENTRIES = 64, 65  # IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES; the same numbers for IPv6
_INFO: Final = struct.Struct("=32s I 5I 5I I I")  # struct ipt_getinfo: name, hooks, entries, underflows, number, size
_HEADER: Final = 40  # struct ipt_get_entries: name[32], size, padding to the 8 bytes of a counter
_COUNTERS_SIZE: Final = 16
_ATTEMPTS: Final = 5
_HOOKS: Final = ("PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING")
"""The chains of the kernel, by enum nf_inet_hooks."""
ELEMENT: Final = 32
"""struct xt_entry_match, xt_entry_target: size, name and revision; what follows is the extension's own."""
_ERROR: Final = b"ERROR\0"
"""The target by which the kernel marks the beginning of a chain, and the end of the table."""

_libc = ctypes.CDLL(None, use_errno=True)


@frozen
class Layout:
    """The tables of a family (linux/netfilter_ipv4/ip_tables.h, ...ipv6/ip6_tables.h): where an entry has what."""

    level: int
    address: int
    """Bytes of an address."""
    protocol: int
    flags: int
    inverse: int
    offsets: int
    """Where the offset of the target stands, and after it that of the next entry."""
    counters: int
    elements: int
    """Where the matches begin."""
    goto: int
    """Flag of a rule that goes to a chain and does not come back."""
    other_flags: int
    """Flags by which a rule asks for more: IPT_F_FRAG, IP6T_F_TOS."""


LAYOUTS: Final = {
    4: Layout(socket.IPPROTO_IP, 4, 80, 82, 83, 88, 96, 112, 0x02, 0x01),
    6: Layout(socket.IPPROTO_IPV6, 16, 128, 131, 132, 140, 152, 168, 0x04, 0x02),
}
"""The layout of an IP version's tables."""


@frozen
class RawTable:
    """A table as the kernel has it."""

    version: int
    name: str
    entries: bytes
    """struct ipt_entry or ip6t_entry, one after the other."""
    starts: tuple[int | None, ...]
    """Where the chain of each hook begins, by enum nf_inet_hooks; None: no such chain."""
    policies: tuple[int, ...]
    """Where the policy of each hook's chain is."""
    number: int
    """Number of entries in the table."""

    def chains(self) -> dict[str, "RawChain"]:
        """Every chain, by its name."""
        layout = LAYOUTS[self.version]
        hooks = {start: hook for hook, start in enumerate(self.starts) if start is not None}
        policies = {self.policies[hook] for hook in hooks.values()}
        found: dict[str, RawChain] = {}
        current = RawChain(0, [])
        start, entries = 0, self.entries
        while start + layout.elements <= len(entries):
            target, size = struct.unpack_from("=HH", entries, start + layout.offsets)
            end = start + max(size, layout.elements)
            if start in hooks:
                current = found[_HOOKS[hooks[start]]] = RawChain(start, [])
            if entries[start + target + 2 : start + target + 8] == _ERROR:
                name = entries[start + target + ELEMENT : end].partition(b"\0")[0].decode(errors="replace")
                current = found[name] = RawChain(end, [])
            elif start not in policies:
                current.rules.append((start, end))
            start = end
        for name, chain in found.items():
            if name not in _HOOKS and chain.rules:
                chain.rules.pop()  # the return to the caller, which the kernel has at the end of each
        found.pop("ERROR", None)  # the end of the table
        return found


@frozen
class RawChain:
    """A chain in a table as the kernel has it."""

    start: int
    """Offset that jumps to the chain go to."""
    rules: list[tuple[int, int]]
    """Offsets where each of its rules begins and ends."""


def existing_tables(family: Family) -> tuple[str, ...]:
    """The tables that exist in this network namespace, sorted. Asking for another would create it.

    Raises Unavailable: only root may know.
    """
    try:
        descriptor = os.open(f"/proc/thread-self/net/{_NAMES_FILES[family.version]}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            return tuple(sorted(os.read(descriptor, _NAMES_SIZE).decode().split()))
        finally:
            os.close(descriptor)
    except FileNotFoundError:
        return ()  # the module is not loaded: there are no legacy tables
    except PermissionError:
        raise Unavailable(
            "only root may list the kernel's tables: run the service as root, with the capabilities NET_ADMIN "
            "and NET_RAW"
        ) from None
    except OSError as error:
        raise Unavailable(f"the kernel does not list its tables: {error.strerror}") from None


class TableReader:
    """Reads the tables of one family. Every call but `close` raises Unavailable."""

    def __init__(self, family: Family) -> None:
        self._family = family
        self._layout = LAYOUTS[family.version]
        self._socket: socket.socket | None = None
        self._masks: dict[str, tuple[int, int]] = {}
        """Size of a table's entries in bytes, and a number of ones with zeros where the counters are, by table."""

    def sizes(self) -> tuple[tuple[str, tuple[Any, ...]], ...]:
        """Where the chains of each table begin and end: another value when a rule comes or goes.

        Takes microseconds, however many rules there are. A rule in place of another of the same size is not seen.
        """
        return tuple((name, self._information(name)) for name in self._names())

    def digest(self) -> tuple[Hashable, Hashable]:
        """The sizes, and another value when a table, chain, policy or rule differs; packet counters do not count."""
        sizes = self.sizes()
        return sizes, tuple((name, self._without_counters(name, information[-1])) for name, information in sizes)

    def mentioned(self, names: Iterable[str]) -> frozenset[str]:
        """Returns those of these names that a table has as a chain."""
        found = [self._entries(table) for table in self._names()]
        return frozenset(name for name in names if any(b"\0" + name.encode() + b"\0" in each for each in found))

    def tables(self) -> list[RawTable]:
        """Reads all tables that exist."""
        return [self.table(name) for name in self._names()]

    def close(self) -> None:
        """Closes the socket, if it is open."""
        if self._socket:
            self._socket.close()
            self._socket = None

    def _names(self) -> list[str]:
        return [name for name in existing_tables(self._family) if name in TABLES]

    def table(self, name: str) -> RawTable:
        """One table, which is made if this namespace has none yet."""
        for _ in range(_ATTEMPTS):
            _, hooks, *offsets, number, _ = before = self._information(name)
            entries = self._entries(name)
            if self._information(name) == before:
                starts = tuple(offsets[hook] if hooks >> hook & 1 else None for hook in range(5))
                return RawTable(self._family.version, name, entries, starts, tuple(offsets[5:10]), number)
        raise Unavailable(f"{self._family} table {name} changes faster than it can be read")

    def _information(self, table: str) -> tuple[Any, ...]:
        """Reads a table's `struct ipt_getinfo` from the kernel."""
        buffer = ctypes.create_string_buffer(table.encode(), _INFO.size)
        self._ask(_GET_INFO, buffer)
        return _INFO.unpack(buffer)

    def _entries(self, table: str, size: int = 0) -> bytes:
        """Read atomically; the kernel refuses another size than the table's. 0: the size is not known."""
        for _ in range(_ATTEMPTS):
            size = size or self._information(table)[-1]
            buffer = ctypes.create_string_buffer(_HEADER + size)
            struct.pack_into("=32s I", buffer, 0, table.encode(), size)
            try:
                self._ask(_GET_ENTRIES, buffer)
            except BlockingIOError:
                size = 0
                continue
            return buffer.raw[_HEADER:]
        raise Unavailable(f"{self._family} table {table} changes faster than it can be read")

    def _without_counters(self, table: str, size: int) -> int:
        """The entries as one number, with zeros for the counters.

        A mask is made once for a size. Should the entries move and the size stay, they differ from before at a place
        that the old mask shows: the change is seen all the same.
        """
        entries = self._entries(table, size)
        known, mask = self._masks.get(table, (-1, 0))
        if known != len(entries):
            mask = self._mask(entries)
            self._masks[table] = len(entries), mask
        return int.from_bytes(entries, "little") & mask

    def _mask(self, entries: bytes) -> int:
        mask = bytearray(b"\xff" * len(entries))
        start = 0
        while start < len(entries):
            at = start + self._layout.counters
            mask[at : at + _COUNTERS_SIZE] = bytes(_COUNTERS_SIZE)
            start += struct.unpack_from("=H", entries, start + self._layout.offsets + 2)[0]
        return int.from_bytes(mask, "little")

    def _ask(self, option: int, buffer: "ctypes.Array[ctypes.c_char]") -> None:
        """Python's own getsockopt cannot pass the name of a table in."""
        length = ctypes.byref(ctypes.c_uint32(len(buffer)))
        if _libc.getsockopt(self._descriptor(), self._layout.level, option, buffer, length):
            code = ctypes.get_errno()
            if code == errno.EAGAIN:
                raise BlockingIOError
            raise Unavailable(
                f"cannot read the legacy {self._family} tables: {os.strerror(code)}; "
                "run the service as root with CAP_NET_ADMIN and CAP_NET_RAW"
            )

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


DEFAULT_PATH: Final = Path("/run/xtables.lock")
PATH_VARIABLE: Final = "XTABLES_LOCKFILE"
"""Environment variable that names another file; iptables obeys it too (since 1.8.1)."""


def lock_path() -> Path:
    """The lock file that iptables in this environment uses."""
    return Path(os.environ.get(PATH_VARIABLE) or DEFAULT_PATH)


@contextmanager
def xtables_lock(path: Path, seconds: float) -> Iterator[None]:
    """Holds the lock while the block runs: no program that takes the lock changes a table between read and commit.

    Waits in the kernel's queue, so that busy writers cannot starve us. Raises Unavailable: not free within
    `seconds`, or the file cannot be made. Main thread only (it borrows SIGALRM).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise Unavailable(
            f"cannot open the iptables lock {path}: {error.strerror}; mount the host's /run/xtables.lock writable, "
            f"or name another file in {PATH_VARIABLE}"
        ) from None
    try:
        _close_to_others(descriptor)
        _lock(descriptor, path, seconds)
        yield
    finally:
        os.close(descriptor)


def _close_to_others(descriptor: int) -> None:
    """Makes our lock file root's alone, as iptables makes it: a kubelet makes it for everybody to read, and who may
    read it may lock it, and so keep all iptables of the host from any change.
    """
    state = os.fstat(descriptor)
    if stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid() and state.st_mode & 0o077:
        with suppress(OSError):  # on a file system that is mounted to be read
            os.fchmod(descriptor, 0o600)


def _lock(descriptor: int, path: Path, seconds: float) -> None:
    before = signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except TimeoutError:
        raise Unavailable(
            f"another program has held the iptables lock {path} for {seconds:g} s: see which with `fuser {path}`"
        ) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _time_is_up(number: int, frame: FrameType | None) -> None:
    raise TimeoutError
