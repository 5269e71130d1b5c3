"""`make chaos`: runs faults against a cluster, with a line for each and a verdict at the end."""

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from lab import private
from lab.build import CommandFailed
from lab.chaos import report
from lab.chaos.options import parse
from lab.chaos.outcome import Happened, Outcome
from lab.chaos.run import Run, Stuck
from lab.cluster import LabFailed
from lab.directory import DirectoryUnusable, held, where
from lab.inside import MARK
from lab.options import BadOption
from lab.programs import NoEtcd

_OURS = (private.NamespacesForbidden, DirectoryUnusable, NoEtcd, CommandFailed, LabFailed, Stuck)


def main(arguments: Sequence[str]) -> int:
    """The exit code: 1 if something happened that the table does not allow, 2 for a wrong command line."""
    try:
        outcome = Outcome(parse(arguments))
        if keep := outcome.options.keep:
            _make(keep)
    except BadOption as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    try:
        if not private.is_private(MARK):
            seed = f"--seed={outcome.options.seed}"
            private.restart(MARK, [sys.executable, "-m", "lab.chaos", *arguments, seed])
        with held(where(private.user_id(os.environ[MARK]))) as directory:
            code = asyncio.run(_run(outcome, directory))
    except* _OURS as errors:
        outcome.failures += map(str, _leaves(errors))
        code = 1
    if outcome.options.json:
        outcome.options.json.write_text(json.dumps(report.figures(outcome), indent=1) + "\n")
    report.show(outcome)
    return code or (1 if any(outcome.all_failures()) else 0)


def _make(keep: Path) -> None:
    try:
        keep.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"--keep={keep} cannot be made ({error.strerror}): name another directory") from None


async def _run(outcome: Outcome, directory: Path) -> int:
    private.cancel_on_signals()
    report.title(outcome.options)

    def tell(happened: Happened, lost: int) -> None:
        report.line(outcome, happened, lost)

    try:
        async with asyncio.TaskGroup() as group:
            await Run(outcome, directory, tell).run(group, report.step)
    except asyncio.CancelledError:
        outcome.failures.append("interrupted")
        return 130
    return 0


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
