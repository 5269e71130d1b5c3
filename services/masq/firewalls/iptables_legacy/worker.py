"""The worker process of one address family: reads the legacy tables, changes them with python-iptables, and answers
requests on a socket.

`WorkerProcess` starts the worker. When the parent closes its end of the socket, or is killed, the worker finishes a
running check and ends. Between requests the worker blocks in a read.

What is there is read from the kernel's bytes: python-iptables would walk over every rule, and the extensions of some
may not be installed.
"""

import ctypes.util
import signal
import socket
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4, IPV6, Family
from flannelette.services.masq.diagnose.jump_place import span_of
from flannelette.services.masq.diagnose.verdict import ForeignRule
from flannelette.services.masq.diagnose.xt_rules import matches_of, rule_of
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.firewalls.flannelds import BareRule, bare_rule, bare_set
from flannelette.services.masq.firewalls.iptables import (
    ChainForm,
    FoundChain,
    FoundJump,
    FoundRule,
    chain_form,
    chain_state,
    others_than,
    repair_of,
    text_of,
    without_others,
)
from flannelette.services.masq.firewalls.iptables_legacy.messages import (
    LENGTH,
    CheckRequest,
    Failure,
    Hello,
    Message,
    decode,
    encode,
)
from flannelette.services.masq.kernel.legacy_tables import (
    LAYOUTS,
    RawTable,
    TableReader,
    existing_tables,
    xtables_lock,
)
from flannelette.services.masq.rules import Chain

if TYPE_CHECKING:
    from flannelette.services.masq.firewalls.iptables_legacy.xtables import LegacyTable

_LOCK_SECONDS: Final = 5.0
_ATTEMPTS: Final = 4
"""Attempts to commit while a program without the lock changes the table."""
_CAPABILITIES: Final = {"CAP_NET_ADMIN": 12, "CAP_NET_RAW": 13}
"""Capabilities that the worker needs (capabilities(7)), with their bit numbers."""
_LIBRARIES: Final = {"xtables": "libxtables12", "ip4tc": "libip4tc2", "ip6tc": "libip6tc2"}
_PACKAGES: Final = " ".join(("iptables", *_LIBRARIES.values()))


class Worker:
    """Compares and repairs the chains of one family."""

    def __init__(self, family: Family, lock: Path) -> None:
        self._family = family
        self._lock = lock
        self._tables: dict[str, LegacyTable] = {}
        self._reader = TableReader(family)

    def hello(self) -> Message:
        """Hello, or a Failure with what this machine lacks."""
        missing = missing_capabilities()
        if missing:
            return Failure(
                f"legacy iptables needs {' and '.join(missing)}: run the service as root with these capabilities"
            )
        try:
            from flannelette.services.masq.firewalls.iptables_legacy.xtables import masquerade_knows_fully_random

            return Hello(masquerade_knows_fully_random(self._family))
        except Unavailable as error:
            return Failure(str(error))
        except Exception as error:  # iptc loads its libraries at import, and fails in many ways
            missing = [library for library in _LIBRARIES if not ctypes.util.find_library(library)]
            return Failure(why_import_failed(error, missing, has_ldconfig=Path("/sbin/ldconfig").exists()))

    def check(self, request: CheckRequest) -> Message:
        """Carries out a request, a table at a time, with the xtables lock held from read to commit."""
        try:
            with xtables_lock(self._lock, _LOCK_SECONDS):
                by_table = groupby(request.chains, key=lambda chain: chain.table)
                states = [
                    state
                    for name, chains in by_table
                    for state in self._check_table(name, tuple(chains), repair=request.repair)
                ]
        except Unavailable as error:
            return Failure(str(error))
        return tuple(states)

    def _check_table(self, name: str, chains: tuple[Chain, ...], *, repair: bool) -> Iterator[ChainState]:
        from flannelette.services.masq.firewalls.iptables_legacy.xtables import LegacyTable, TableChanged

        wanted = [chain_form(chain) for chain in chains]
        before = found = [FoundChain(None)] * len(chains)
        makes_rules = repair and any(chain.rules for chain in chains)
        is_read = makes_rules or name in existing_tables(self._family)
        for attempt in range(_ATTEMPTS + 1) if is_read else ():
            table = self._tables.setdefault(name, LegacyTable(self._family, name))
            table.refresh()
            raw = self._reader.table(name)
            found = [find(chain, raw) for chain in wanted]
            before = found if attempt == 0 else before
            repairs = [repair_of(chain, now) for chain, now in zip(wanted, found, strict=True)]
            if not repair or attempt == _ATTEMPTS or not any(each.actions for each in repairs):
                break
            with suppress(TableChanged):
                table.carry_out([action for each in repairs for action in each.actions])
                table.commit()
        program = "iptables-legacy" if self._family is IPV4 else "ip6tables-legacy"
        return (chain_state(*each, program) for each in zip(chains, wanted, before, found, strict=True))


def find(wanted: ChainForm, table: RawTable) -> FoundChain:
    """What there is of a chain. Jumps are looked for in its hook; in all chains if it shall go."""
    version, chains = table.version, table.chains()
    names = {chain.start: name for name, chain in chains.items()}
    entries = {name: [table.entries[slice(*place)] for place in chain.rules] for name, chain in chains.items()}
    hook = entries.get(wanted.hook, [])
    jumps = tuple(_jumps(wanted, version, wanted.hook, hook, names))
    read = partial(rule_of, version, wanted.hook, names=names)

    def chain_of(name: str) -> Sequence[ForeignRule] | None:
        return list(map(read, entries[name])) if name in entries else None

    span = span_of(wanted.table, others_than(jumps, hook), read, chain_of)
    old = bare_set(wanted.table, _bare_rules(version, hook), wanted.networks) if wanted.replaces_old else []
    bare = tuple(FoundJump(wanted.hook, place, FoundRule("")) for place in old)
    if wanted.name not in chains:
        return FoundChain(None, bare=bare, span=span)
    if not wanted.rules:
        found = (_jumps(wanted, version, name, rules, names) for name, rules in entries.items())
        jumps = tuple(jump for some in found for jump in some)
    ours = tuple(_found(version, wanted.name, entry, names) for entry in entries[wanted.name])
    return without_others(wanted, FoundChain(ours, jumps, bare, span))


def _bare_rules(version: int, entries: Sequence[bytes]) -> list[BareRule | None]:
    """Returns the rules of a hook's chain that ask for addresses only.

    None: another rule, or one about a network that the chain does not name both as a source and as a destination.
    """
    size = LAYOUTS[version].address
    ends = [struct.unpack_from(f"={size}s{size}s{size}s{size}s", entry) for entry in entries]
    sources, destinations = [(each[0], each[2]) for each in ends], [(each[1], each[3]) for each in ends]
    both = {*sources} & {*destinations} - {(bytes(size), bytes(size))}
    return [
        bare_rule(rule_of(version, "", entry, {})) if {*pair} & both else None
        for entry, pair in zip(entries, zip(sources, destinations, strict=True), strict=True)
    ]


def _jumps(
    wanted: ChainForm, version: int, chain: str, rules: Sequence[bytes], names: Mapping[int, str]
) -> Iterator[FoundJump]:
    """Yields the jumps to our chain. Of thousands of foreign rules, only those are decoded that may be one."""
    starts = [struct.pack("=i", start) for start, name in names.items() if name == wanted.name]
    for place, entry in enumerate(rules):
        is_one = any(each in entry for each in starts) and rule_of(version, chain, entry, names).target == wanted.name
        if is_one:
            yield FoundJump(chain, place, _found(version, chain, entry, names))


def _found(version: int, chain: str, entry: bytes, names: Mapping[int, str]) -> FoundRule:
    found = (data for name, _, data in matches_of(version, entry) if name == "comment")
    comment = next(found, b"").partition(b"\0")[0].decode(errors="replace")
    packets, octets = struct.unpack_from("=QQ", entry, LAYOUTS[version].counters)
    return FoundRule(text_of(chain, rule_of(version, chain, entry, names), comment), packets, octets)


def missing_capabilities(status: str | None = None) -> list[str]:
    """Returns the capabilities that legacy iptables needs and that are not effective; `status` as in
    /proc/self/status.
    """
    text = Path("/proc/thread-self/status").read_text() if status is None else status
    line = next(line for line in text.splitlines() if line.startswith("CapEff:"))
    effective = int(line.split()[1], 16)
    return [name for name, bit in _CAPABILITIES.items() if not effective >> bit & 1]


def why_import_failed(error: Exception, missing: Sequence[str], *, has_ldconfig: bool) -> str:
    """What python-iptables lacks, and how to get it; `missing` are names of libraries that cannot be found."""
    if isinstance(error, ModuleNotFoundError):
        return f"the Python package python-iptables is not installed ({error}): pip install 'flannelette[masq]'"
    if not has_ldconfig:
        return f"python-iptables finds its libraries with /sbin/ldconfig ({error}): apt-get install libc-bin"
    if missing:
        packages = " ".join(_LIBRARIES[library] for library in missing)
        return f"libraries of iptables are missing: apt-get install iptables {packages}"
    return f"the libraries of iptables cannot be used ({error}): apt-get install --reinstall {_PACKAGES}"


def serve(connection: socket.socket, worker: Worker) -> None:
    """Sends Hello, then answers requests until the other end is closed."""
    with connection, connection.makefile("rwb") as stream:
        stream.write(encode(worker.hello()))
        stream.flush()
        while length := stream.read(LENGTH.size):
            request = decode(stream.read(*LENGTH.unpack(length)))
            if not isinstance(request, CheckRequest):
                raise TypeError(f"a worker does not understand {type(request).__name__}")
            stream.write(encode(worker.check(request)))
            stream.flush()


def main() -> None:
    """`python -m flannelette.services.masq.firewalls.iptables_legacy.worker FD VERSION LOCKFILE`."""
    descriptor, version, lock = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    serve(connection, Worker(IPV4 if version == "4" else IPV6, Path(lock)))


if __name__ == "__main__":
    main()
