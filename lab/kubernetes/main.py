"""`make kube-lab` and `python -m lab.kubernetes`: options in, a cluster in namespaces, an exit code out."""

import asyncio
import os
import signal
import sys
from typing import Final

from lab import private, show
from lab.build import CommandFailed
from lab.cluster import LabFailed
from lab.kubernetes import guest, parts
from lab.kubernetes.options import USAGE, Options, parse
from lab.kubernetes.session import Session
from lab.options import BadOption
from lab.programs import NoEtcd
from lab.vm import is_guest
from lab.vm.packages import VmFailed, VmUnusable

_MARK: Final = "FLANNELETTE_KUBE_LAB_PRIVATE"
_OURS: Final = (
    private.NamespacesForbidden,
    parts.PartMissing,
    NoEtcd,
    CommandFailed,
    LabFailed,
    VmUnusable,
    VmFailed,
)


def main(arguments: list[str]) -> int:
    """0: the trial was passed, or Ctrl-C. 1: something failed. 2: wrong options. 130: interrupted."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    try:
        options = parse(arguments, os.environ)
        if os.geteuid():
            raise BadOption("kubelets need root: sudo make kube-lab")
        if options.vm and not is_guest():
            with parts.locked():
                _prepare(options)
                return _run_in_vm(options, arguments)
        if not private.is_private(_MARK):
            if is_guest():
                guest.bring_images()
            else:
                with parts.locked():
                    _prepare(options)
            private.restart(_MARK, [sys.executable, "-m", "lab.kubernetes", *arguments])
        with parts.locked():
            return asyncio.run(_run(options))
    except BadOption as error:
        show.complain(f"kube-lab: {error}")
        return 2
    except _OURS as error:
        show.complain(f"kube-lab: {error}")
        return 1


def _prepare(options: Options) -> None:
    """Builds what is not in the cache, in the machine's own network."""
    screen = show.Screen()
    version = parts.version()
    families = " and ".join(f"IPv{number}" for number in options.versions)
    screen.title(f"Kubernetes {version}, {options.nodes} nodes, {options.backend}, {families}, {options.overlay}")
    parts.build_missing(screen, options.policy)


def _run_in_vm(options: Options, arguments: list[str]) -> int:
    """The same lab in a virtual machine, which has our terminal."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return guest.run([sys.executable, "-m", "lab.kubernetes", *arguments], options.nodes)
    except KeyboardInterrupt:
        return 130 if options.once else 0


async def _run(options: Options) -> int:
    private.cancel_on_signals()
    try:
        return await Session(options, private.way_in(os.environ[_MARK], os.getpid())).run()
    except asyncio.CancelledError:
        return 130 if options.once else 0
