"""`make simulate`: runs it, tells act by act, and shows what came of it."""

import asyncio
import json
import resource
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from lab.programs import NoEtcd
from lab.simulate import report
from lab.simulate.options import Options, parse
from lab.simulate.plot import plot
from lab.simulate.processes import ProcessFailed
from lab.simulate.run import Outcome, simulate


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if a node differed from the store or a process failed, 2 for a wrong command line."""
    options = parse(arguments)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with _directory(options) as directory:
            outcome = asyncio.run(_run(options, directory))
    except (ProcessFailed, NoEtcd) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 1
    except asyncio.CancelledError:
        return 130
    found = report.figures(outcome)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    if options.svg:
        options.svg.write_text(plot(found))
    Console().print(report.tables(outcome))
    return 0 if outcome.is_right else 1


async def _run(options: Options, directory: Path) -> Outcome:
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    tiers = " - ".join(map(str, options.tiers))
    print(f"{options.nodes:,} nodes, {options.kernels:,} of them with a kernel; lease services {tiers}", flush=True)
    return await simulate(options, directory, lambda act: print(report.line(act), flush=True))


@contextmanager
def _directory(options: Options) -> Iterator[Path]:
    if options.keep:
        options.keep.mkdir(parents=True)
        yield options.keep.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="simulate-") as directory:
        yield Path(directory)
