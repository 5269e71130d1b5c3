"""`make lab` and `python -m lab`: options in, a cluster in namespaces of its own, an exit code out."""

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from lab import private, show
from lab.build import CommandFailed, require_kind
from lab.charon import PACKAGES, find_charon, require_charon
from lab.cluster import LabFailed
from lab.directory import DirectoryUnusable, held, where
from lab.etcd import EtcdRefuses
from lab.inside import MARK
from lab.options import USAGE, BadOption, Options, parse
from lab.programs import NoEtcd
from lab.session import Session
from lab.trial import FiguresUnwritable
from lab.vm import is_guest, load, times_as_long
from lab.vm.machine import MEMORY, PATIENCE, Job
from lab.vm.machine import run as run_in_vm
from lab.vm.packages import VmFailed, VmUnusable
from lab.vpc.programs import require_sdk

_OURS: Final = (
    BadOption,
    private.NamespacesForbidden,
    DirectoryUnusable,
    NoEtcd,
    CommandFailed,
    EtcdRefuses,
    LabFailed,
    FiguresUnwritable,
    VmUnusable,
    VmFailed,
)
_MEMORY_PER_NODE: Final = 200
"""MiB for the services of a node, in the virtual machine."""
_WORTH_A_LINE: Final = 2


def main() -> int:
    """0: the trial was passed, or Ctrl-C. 1: something failed. 2: wrong options. 130: the trial was interrupted."""
    arguments = sys.argv[1:]
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    try:
        options = parse(arguments, os.environ)
        if options.vm and not is_guest():
            return _run_in_vm(options, arguments)
        if not private.is_private(MARK):
            private.restart(MARK, [sys.executable, "-m", "lab", *arguments])
        require_kind(options.backend)
        require_charon(options.backend)
        require_sdk(options.backend)
        with held(where(private.user_id(os.environ[MARK]))) as directory:
            return asyncio.run(_run(options, directory))
    except* _OURS as errors:
        for error in _leaves(errors):
            show.complain(f"lab: {error}")
        code = 2 if errors.subgroup(BadOption) else 1
    return code


async def _run(options: Options, directory: Path) -> int:
    """One TaskGroup owns every process of the lab; what asks us to end cancels it, which stops them all."""
    private.cancel_on_signals()
    try:
        async with asyncio.TaskGroup() as group:
            return await Session(options, directory, private.way_in(os.environ[MARK], os.getpid()), group).run()
    except asyncio.CancelledError:
        return 130 if options.once else 0


def _run_in_vm(options: Options, arguments: list[str]) -> int:
    """The same lab in a virtual machine, which has our terminal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    command = [sys.executable, "-m", "lab", *arguments]
    shares = [path.parent for path in (options.json, options.topology) if path]
    memory = max(MEMORY, _MEMORY_PER_NODE * options.hosts)
    packages = PACKAGES if options.backend == "ipsec" and not find_charon() else ()
    times = times_as_long(os.getloadavg()[0], os.cpu_count() or 1)
    if times >= _WORTH_A_LINE:
        show.complain(f"lab: this machine is busy ({load()}): the VM may take {times:.0f} times as long")
    environment = {"FLANNELETTE_PATIENCE": str(PATIENCE * times), **os.environ}
    start = time.monotonic()
    try:
        code = run_in_vm(Job(command, packages, shares, environment, memory=memory))
    except KeyboardInterrupt:
        return 130 if options.once else 0
    if code == 1:
        used, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic() - start
        had = used.ru_utime + used.ru_stime
        show.complain(f"lab: the VM had a processor for {had:.0f} of {seconds:.0f} s; this machine has {load()}")
    return code


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error
