"""The options of a run of chaos, read from its command line."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.chaos.table import FAULTS
from lab.options import ArgumentParser, file_to_write, refuse_run

BACKENDS: Final = ("vxlan", "host-gw")
_MOST_MINUTES: Final = 7 * 24 * 60
_FULL_SIZE: Final = 10.0
"""Minutes: a shorter run has fewer keys and leases in the faults that are large."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a run. The same options give the same faults, in the same order, at the same hosts."""

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
    """The options of a command line. Raises BadOption."""
    parser = ArgumentParser(
        "python -m lab.chaos", description="A cluster of five hosts under pings, and one fault after another."
    )
    add = parser.add_argument
    add("--minutes", type=float, default=5.0, help="how long faults happen. Default: %(default)g")
    add("--seed", type=int, help="replays the faults of the run that printed it. Default: a new one each time")
    add(
        "--backend", default="vxlan,host-gw", help="vxlan, host-gw or both, one after the other. Default: %(default)s"
    )
    add("--faults", default=",".join(FAULTS), help="only these, separated by commas. Default: all")
    add("--list", action="store_true", help="print the names of the faults, and end")
    add("--json", type=Path, help="file for the figures")
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
        parser.error(f"--faults names {unknown[0]!r}: `make chaos ARGS=--list` prints all")
    if unusable := [b for b in backends if not any(FAULTS[name].concerns(b) for name in faults)]:
        parser.error(f"none of --faults can happen with {unusable[0]}: name one more")
    for name, path in (("--json", given.json), ("--keep", given.keep)):
        if path:
            refuse_run(name, path)
    json = given.json and file_to_write("--json", given.json)
    seed = secrets.randbelow(1_000_000) if given.seed is None else given.seed
    return Options(given.minutes, seed, backends, faults, json, given.keep and given.keep.absolute())
