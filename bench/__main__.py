"""`python -m bench [NAME|all] [--options] [--json]`."""

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from bench.acquire import ACQUIRE
from bench.beside import FLANNELD
from bench.burst import BURST
from bench.churn import CHURN
from bench.cold_start import COLD_START
from bench.cold_start_netlink import COLD_START_NETLINK
from bench.event_latency import EVENT_LATENCY
from bench.fanout import FANOUT
from bench.kube_list import KUBE_LIST
from bench.masq import MASQ
from bench.masq_changes import MASQ_CHANGES
from bench.masq_idle import MASQ_IDLE
from bench.outage import OUTAGE
from bench.probes import PROBES
from bench.process import compile_sources
from bench.restart import RESTART
from bench.result import Bench, BenchFailed, NotHere
from bench.resync import RESYNC
from bench.silence import SILENCE
from bench.snapshot import SNAPSHOT
from bench.throughput import THROUGHPUT
from lab import private

_ALL: Final = (
    ACQUIRE,
    BURST,
    CHURN,
    COLD_START,
    COLD_START_NETLINK,
    EVENT_LATENCY,
    FANOUT,
    FLANNELD,
    KUBE_LIST,
    MASQ,
    MASQ_IDLE,
    MASQ_CHANGES,
    OUTAGE,
    PROBES,
    RESTART,
    RESYNC,
    SILENCE,
    SNAPSHOT,
    *THROUGHPUT,
)

BENCHES: Final[dict[str, Bench]] = {bench.name: bench for bench in _ALL}

_MARK: Final = "FLANNELETTE_BENCH_PRIVATE"


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a bench failed, 2 for a wrong command line. Of all, those that cannot run here are left."""
    options = _parser().parse_args(arguments)
    if options.name is None:
        for bench in BENCHES.values():
            print(f"{bench.name:16} {bench.summary}")
        return 0
    if not private.is_private(_MARK):
        try:
            private.restart(_MARK, [sys.executable, "-m", "bench", *arguments])
        except private.NamespacesForbidden as error:
            print(f"bench: {error}", file=sys.stderr)
            return 1
    private.find_system_tools()
    compile_sources()
    for bench in BENCHES.values() if options.name == "all" else (BENCHES[options.name],):
        try:
            result = bench.run({name: getattr(options, name, default) for name, default in bench.parameters.items()})
        except BenchFailed as error:
            print(f"bench {bench.name}: {error}", file=sys.stderr)
            if options.name == "all" and isinstance(error, NotHere):
                continue
            return 1
        if options.json:
            print(result.json(), flush=True)
        else:
            result.show(Console())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("bench", description=__doc__)
    names = parser.add_subparsers(dest="name", metavar="NAME")
    for bench in BENCHES.values():
        one = names.add_parser(bench.name, help=bench.summary, description=bench.summary)
        for name, default in bench.parameters.items():
            one.add_argument(f"--{name}", type=_positive, default=default, help=f"default {default}")
    names.add_parser("all", help="every bench, as it is")
    for one in names.choices.values():
        one.add_argument("--json", action="store_true", help="one JSON object a bench, instead of a table")
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
