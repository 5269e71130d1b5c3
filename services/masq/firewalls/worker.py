"""The worker process of one address family: holds python-iptables, and answers on the socket it was given.

It is started once by `WorkerProcess`, lives as long as its parent holds the other end of the socket, and ends by
itself when that closes, also when the parent was killed: it never outlives it. A check under way is finished
first. Between requests it sleeps in a read.
"""

import ctypes.util
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final

from services.core.errors import Unavailable
from services.core.family import IPV4, IPV6, Family
from services.masq.firewalls.another_network import rule_text
from services.masq.firewalls.lock import xtables_lock
from services.masq.firewalls.messages import (
    ChainForm,
    ChainReport,
    CheckRequest,
    CheckResponse,
    Failure,
    Found,
    Hello,
    Message,
    RuleForm,
    decode,
    encode,
)
from services.masq.firewalls.privileges import missing_capabilities
from services.masq.firewalls.repair import FoundChain, FoundRule, Repair, repair_of
from services.masq.firewalls.table_names import existing_tables

if TYPE_CHECKING:
    from services.masq.firewalls.xtables import LegacyTable

_LOCK_SECONDS: Final = 5.0
_ATTEMPTS: Final = 4
"""Commits against writers who do not take the lock."""
_LIBRARIES: Final = {"xtables": "libxtables12", "ip4tc": "libip4tc2", "ip6tc": "libip6tc2"}
_PACKAGES: Final = " ".join(("iptables", *_LIBRARIES.values()))


class Worker:
    """Compares and repairs the chains of one family."""

    def __init__(self, family: Family, lock: Path) -> None:
        self._family = family
        self._lock = lock
        self._tables: dict[str, LegacyTable] = {}

    def hello(self) -> Message:
        """Whether this machine has what the worker needs."""
        missing = missing_capabilities()
        if missing:
            return Failure(
                f"legacy iptables needs {' and '.join(missing)}: run the service as root with these capabilities"
            )
        try:
            from services.masq.firewalls.xtables import masquerade_knows_fully_random

            return Hello(masquerade_knows_fully_random(self._family))
        except Unavailable as error:
            return Failure(str(error))
        except Exception as error:  # iptc finds its libraries while it is imported, and fails in every way there is
            missing = [library for library in _LIBRARIES if not ctypes.util.find_library(library)]
            return Failure(why_import_failed(error, missing, has_ldconfig=Path("/sbin/ldconfig").exists()))

    def check(self, request: CheckRequest) -> Message:
        """Carries out a request, a table at a time, with the xtables lock held from the look to the commit."""
        try:
            with xtables_lock(self._lock, _LOCK_SECONDS):
                by_table = groupby(request.chains, key=lambda chain: chain.table)
                reports = [
                    report
                    for name, chains in by_table
                    for report in self._check_table(name, tuple(chains), repair=request.repair)
                ]
        except Unavailable as error:
            return Failure(str(error))
        return CheckResponse(tuple(reports))

    def _check_table(self, name: str, wanted: tuple[ChainForm, ...], *, repair: bool) -> list[ChainReport]:
        from services.masq.firewalls.xtables import Busy, LegacyTable

        makes_rules = repair and any(chain.rules for chain in wanted)
        if not makes_rules and name not in existing_tables(self._family):
            nothing = FoundChain(None)
            repairs = [repair_of(chain, nothing) for chain in wanted]
            return [self._report(chain, nothing, each, each) for chain, each in zip(wanted, repairs, strict=True)]
        table = self._tables.setdefault(name, LegacyTable(self._family, name))
        first: list[Repair] = []
        ways: list[str] = []
        for attempt in range(_ATTEMPTS + 1):
            table.refresh()
            found = [table.find(chain) for chain in wanted]
            repairs = [repair_of(chain, now) for chain, now in zip(wanted, found, strict=True)]
            first = first or repairs
            ways = ways or [now.first_in_hook for now in found]
            if not repair or attempt == _ATTEMPTS or not any(each.actions for each in repairs):
                break
            try:
                table.carry_out([action for each in repairs for action in each.actions])
                table.commit()
            except Busy:
                continue
        reports = [self._report(*each) for each in zip(wanted, found, first, repairs, strict=True)]
        return [replace(report, in_the_way=way) for report, way in zip(reports, ways, strict=True)]

    def _report(self, wanted: ChainForm, found: FoundChain, first: Repair, last: Repair) -> ChainReport:
        program = "iptables" if self._family is IPV4 else "ip6tables"
        rules = found.rules or ()
        jump = next((j.rule for j in found.jumps if j.position == 0 and j.chain == wanted.hook), None)
        return ChainReport(
            _found(wanted.jump, jump),
            tuple(_found(rule, rules[i] if i < len(rules) else None) for i, rule in enumerate(wanted.rules)),
            first.causes,
            tuple(f"{program} -t {wanted.table} {action}" for action in first.actions),
            not last.actions,
            others=tuple(rule_text(wanted.name, other.rule.form or {}) for other in found.others),
        )


def _found(wanted: RuleForm, rule: FoundRule | None) -> Found:
    if rule is None or rule.form != wanted.form:
        return Found(False)
    return Found(True, rule.packets, rule.bytes)


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
    """Greets, then answers until the other end is closed."""
    with connection, connection.makefile("rwb") as stream:
        stream.write(encode(worker.hello()))
        stream.flush()
        for line in stream:
            request = decode(line)
            if not isinstance(request, CheckRequest):
                raise TypeError(f"a worker does not understand {type(request).__name__}")
            stream.write(encode(worker.check(request)))
            stream.flush()


def main() -> None:
    """`python -m services.masq.firewalls.worker FD VERSION LOCKFILE`."""
    descriptor, version, lock = sys.argv[1:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole process group; the parent decides
    connection = socket.socket(fileno=int(descriptor))
    connection.set_inheritable(False)
    serve(connection, Worker(IPV4 if version == "4" else IPV6, Path(lock)))


if __name__ == "__main__":
    main()
