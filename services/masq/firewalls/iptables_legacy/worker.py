"""The worker process of one address family: uses python-iptables, and answers requests on a socket.

`WorkerProcess` starts the worker. When the parent closes its end of the socket, or is killed, the worker finishes a
running check and ends. Between requests the worker blocks in a read.
"""

import ctypes.util
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.family import IPV4, IPV6, Family
from flannelette.services.masq.firewalls.firewall import ChainState
from flannelette.services.masq.firewalls.iptables import FoundChain, chain_form, chain_state, repair_of
from flannelette.services.masq.firewalls.iptables_legacy.messages import (
    LENGTH,
    CheckRequest,
    Failure,
    Hello,
    Message,
    decode,
    encode,
)
from flannelette.services.masq.kernel.legacy_tables import existing_tables, xtables_lock
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
            found = [table.find(chain) for chain in wanted]
            before = found if attempt == 0 else before
            repairs = [repair_of(chain, now) for chain, now in zip(wanted, found, strict=True)]
            if not repair or attempt == _ATTEMPTS or not any(each.actions for each in repairs):
                break
            with suppress(TableChanged):
                table.carry_out([action for each in repairs for action in each.actions])
                table.commit()
        program = "iptables-legacy" if self._family is IPV4 else "ip6tables-legacy"
        return (chain_state(*each, program) for each in zip(chains, wanted, before, found, strict=True))


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
