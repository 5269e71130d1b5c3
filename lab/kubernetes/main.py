"""`make kube-lab` and `python -m lab.kubernetes`: options in, a cluster in namespaces, an exit code out."""

import asyncio
import os
import sys
from typing import Final

from lab import private, show
from lab.build import CommandFailed
from lab.cluster import LabFailed
from lab.kubernetes import parts
from lab.kubernetes.options import USAGE, Options, parse
from lab.kubernetes.session import Session
from lab.options import BadOption
from lab.programs import NoEtcd

_MARK: Final = "FLANNELETTE_KUBE_LAB_PRIVATE"


def main(arguments: list[str]) -> int:
    """0: the trial was passed, or Ctrl-C. 1: something failed. 2: wrong options. 130: interrupted."""
    if {"-h", "--help"} & set(arguments):
        print(USAGE)
        return 0
    try:
        options = parse(arguments, os.environ)
        if os.geteuid():
            raise BadOption("kubelets need root: sudo make kube-lab")
        if not private.is_private(_MARK):
            with parts.locked():
                _prepare(options)
            private.restart(_MARK, [sys.executable, "-m", "lab.kubernetes", *arguments])
        with parts.locked():
            return asyncio.run(_run(options))
    except BadOption as error:
        show.complain(f"kube-lab: {error}")
        return 2
    except (private.NamespacesForbidden, parts.PartMissing, NoEtcd, CommandFailed, LabFailed) as error:
        show.complain(f"kube-lab: {error}")
        return 1


def _prepare(options: Options) -> None:
    """Builds what is not in the cache, in the machine's own network."""
    screen = show.Screen()
    version = parts.version()
    families = " and ".join(f"IPv{number}" for number in options.versions)
    screen.title(f"Kubernetes {version}, {options.nodes} nodes, {options.backend}, {families}, {options.overlay}")
    parts.build_missing(screen)


async def _run(options: Options) -> int:
    private.cancel_on_signals()
    try:
        return await Session(options, private.way_in(os.environ[_MARK], os.getpid())).run()
    except asyncio.CancelledError:
        return 130 if options.once else 0
