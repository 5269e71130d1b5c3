"""`make simulate`: runs a simulation, prints a line for each act, and tables at the end."""

import asyncio
import json
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from lab.options import BadOption
from lab.private import cancel_on_signals
from lab.programs import NoEtcd
from lab.simulate import report
from lab.simulate.faults import Act
from lab.simulate.options import Options, parse
from lab.simulate.plot import plot
from lab.simulate.processes import ProcessFailed
from lab.simulate.run import Outcome, simulate


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a node differed from the store or a process failed, 2 for a wrong command line."""
    try:
        options = parse(arguments)
    except BadOption as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    outcome, code = Outcome(options), 0
    try:
        asyncio.run(_run(outcome))
    except (ProcessFailed, NoEtcd, BadOption) as error:
        print(f"simulate: {error}", file=sys.stderr)
        code = 2 if isinstance(error, BadOption) else 1
    except asyncio.CancelledError:
        code = 130
    if outcome.acts:
        Console().print(report.tables(outcome))
    return code or (0 if outcome.is_right else 1)


async def _run(outcome: Outcome) -> None:
    cancel_on_signals()  # before there is a directory to leave behind
    options = outcome.options
    tiers = "one for each node" if options.per_node else " - ".join(map(str, options.tiers))
    print(f"{options.nodes:,} nodes, {options.kernels:,} of them with a kernel; lease services {tiers}", flush=True)
    away = options.away * len({"store", "partition"} & {*options.faults})
    minutes = max(1, round((options.seconds + away) / 60))
    print(f"about {minutes} min, and what nodes need to recover; a line follows each act", flush=True)

    def tell(act: Act) -> None:
        print(report.line(act), flush=True)
        found = report.figures(outcome)
        if options.json:
            options.json.write_text(json.dumps(found, indent=1) + "\n")
        if options.svg:
            options.svg.write_text(plot(found))

    with _directory(options) as directory:
        try:
            await simulate(outcome, directory, tell)
        except ProcessFailed:
            await asyncio.sleep(0.5)  # a signal to the whole group ends a process too, and cancels us here
            raise


@contextmanager
def _directory(options: Options) -> Iterator[Path]:
    if options.keep:
        try:
            options.keep.mkdir(parents=True)
        except OSError as error:
            raise BadOption(
                f"--keep={options.keep} cannot be made ({error.strerror}): name a new directory"
            ) from None
        yield options.keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="simulate-", ignore_cleanup_errors=True) as directory:
        yield Path(directory)
