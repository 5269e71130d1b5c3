"""What a run of chaos shall be: the command line."""

import argparse
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.chaos.table import FAULTS
from lab.options import BadOption, file_to_write

BACKENDS: Final = ("vxlan", "host-gw")
_MOST_MINUTES: Final = 7 * 24 * 60
_FULL_SIZE: Final = 10.0
"""Minutes: a shorter run has fewer keys and leases in the faults that are large."""


@dataclass(frozen=True, slots=True)
class Options:
    """What a run shall be. The same options are the same faults, in the same order, at the same hosts."""

    minutes: float
    seed: int
    backends: tuple[str, ...]
    """One after the other, each for its part of the time."""
    faults: tuple[str, ...]
    json: Path | None
    keep: Path | None

    @property
    def is_full(self) -> bool:
        """Whether large faults have their full size."""
        return self.minutes >= _FULL_SIZE

    @property
    def command(self) -> str:
        """What runs it again."""
        some = f" ARGS='--faults {','.join(self.faults)}'" if self.faults != tuple(FAULTS) else ""
        return f"make chaos MINUTES={self.minutes:g} SEED={self.seed} BACKEND={','.join(self.backends)}{some}"


def parse(arguments: Sequence[str]) -> Options:
    """Exits with 2 and a message for a wrong command line."""
    parser = argparse.ArgumentParser(
        "python -m lab.chaos", description="Five hosts under pings, and what goes wrong."
    )
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="how long faults happen; default 5")
    add("--seed", type=int, help="replays the faults of the run that printed it; default: another one each time")
    add("--backend", default="vxlan,host-gw", help="one or more, in turn. Default: %(default)s")
    add("--faults", default=",".join(FAULTS), help="only these, separated by commas. Default: all")
    add("--list", action="store_true", help="print the faults, and leave")
    add("--json", type=Path, help="write the figures there")
    add("--keep", type=Path, help="directory into which the logs are copied at the end")
    given = parser.parse_args(arguments)
    if given.list:
        width = max(map(len, FAULTS))
        parser.exit(message="".join(f"{name:<{width}}  {fault.does}\n" for name, fault in FAULTS.items()))
    if not 0 < given.minutes <= _MOST_MINUTES:
        parser.error(f"--minutes is {given.minutes:g}: use more than 0, and a week at most")
    backends, faults = tuple(given.backend.split(",")), tuple(given.faults.split(","))
    if unknown := [name for name in backends if name not in BACKENDS]:
        parser.error(f"--backend names {unknown[0]!r}: use {' or '.join(BACKENDS)}, or both with a comma between")
    if unknown := [name for name in faults if name not in FAULTS]:
        parser.error(f"--faults names {unknown[0]!r}: `python -m lab.chaos --list` prints all")
    if unusable := [b for b in backends if not any(FAULTS[name].concerns(b) for name in faults)]:
        parser.error(f"none of --faults can happen with {unusable[0]}: name one more")
    try:
        json = given.json and file_to_write("--json", given.json)
    except BadOption as error:
        parser.error(str(error))
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    return Options(given.minutes, seed, backends, faults, json, given.keep and given.keep.absolute())
