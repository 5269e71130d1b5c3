"""What a simulation shall be: the command line."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.options import BadOption, file_to_write

MOST_NODES: Final = 60_000
"""10.0.0.0/8 has 65,535 subnets."""
FAULTS: Final = ("services", "nodes", "store", "partition", "renumber")

_FAULTS_HELP: Final = """\
which faults happen, separated by commas, in this order: services (each lease service is restarted, one after the
other), nodes (each node is), store (etcd is away), partition (half of the lease services are silent; of one, half of
the nodes), renumber (all nodes come back with another address and an empty kernel); `none`. Default: all"""


@dataclass(frozen=True, slots=True)
class Options:
    """What a simulation shall be."""

    nodes: int
    minutes: float
    churn: float
    tiers: tuple[int, ...]
    """Lease services of each tier, from etcd down."""
    kernels: int
    crowds: int
    faults: tuple[str, ...]
    patience: float
    json: Path | None
    svg: Path | None
    keep: Path | None

    @property
    def seconds(self) -> float:
        """The time that disturbances last; what takes as long as it takes comes on top."""
        return 60 * self.minutes

    def has_kernel(self, number: int) -> bool:
        """Whether the node of this number plans its kernel: these are spread evenly."""
        return self.kernels > 0 and number * self.kernels // self.nodes != (number - 1) * self.kernels // self.nodes


def parse(arguments: Sequence[str]) -> Options:
    """Exits with 2 and a message for a wrong command line."""
    parser = argparse.ArgumentParser(
        "python -m lab.simulate", description="Simulated nodes against real lease services and a real etcd."
    )
    add = parser.add_argument
    add("--nodes", type=int, default=1000, help=f"1 to {MOST_NODES:,}. Default: %(default)s")
    add("--minutes", type=float, default=3.0, help="how long it is disturbed, about. Default: %(default)g")
    add("--churn", type=float, default=1.0, help="nodes a second that are replaced or get another address; default 1")
    add(
        "--tiers",
        default="",
        help="lease services a tier, etcd's first: `1` is one central service, `8` are eight at "
        "etcd, `1,2,8` is one with two tiers of relays. Default: 1,2, and one relay for 625 nodes",
    )
    add(
        "--kernels",
        type=int,
        default=250,
        help="nodes that go all the way to a kernel, 8 MB each for 5,000 nodes; "
        "the others end at their table. Default: %(default)s",
    )
    add("--crowds", type=int, default=0, help="processes with nodes. Default: 2, or one for 1,250 nodes")
    add("--faults", default=",".join(FAULTS), help=_FAULTS_HELP)
    add("--patience", type=float, default=600.0, help="seconds that nodes may take after a fault; default 600")
    add("--json", type=Path, help="write the figures there")
    add("--svg", type=Path, help="draw them there")
    add("--keep", type=Path, help="directory for logs and etcd's data, which is made and left there")
    given = parser.parse_args(arguments)
    if not 1 <= given.nodes <= MOST_NODES:
        parser.error(f"--nodes is {given.nodes}: use 1 to {MOST_NODES}")
    if not 0 < given.minutes <= 24 * 60:
        parser.error(f"--minutes is {given.minutes:g}: use more than 0, and a day at most")
    if not 0 <= given.churn <= 1000:
        parser.error(f"--churn is {given.churn:g}: use 0 to 1000 nodes a second")
    for name in ("kernels", "crowds"):
        if getattr(given, name) < 0:
            parser.error(f"--{name} is {getattr(given, name)}: use 0 or more")
    try:
        tiers = tuple(int(part) for part in given.tiers.split(",") if given.tiers)
    except ValueError:
        tiers = (0,)
    if any(count < 1 for count in tiers):
        parser.error(f"--tiers is {given.tiers!r}: write numbers like 1,2,8")
    faults = tuple(part for part in given.faults.split(",") if part not in ("", "none"))
    if unknown := [fault for fault in faults if fault not in FAULTS]:
        parser.error(f"--faults names {unknown[0]!r}: use {', '.join(FAULTS)}, or none")
    try:
        json, svg = (
            path and file_to_write(name, path) for name, path in (("--json", given.json), ("--svg", given.svg))
        )
    except BadOption as error:
        parser.error(str(error))
    return Options(
        given.nodes,
        given.minutes,
        given.churn,
        tiers or (1, 2, max(2, -(-given.nodes // 625))),
        min(given.kernels, given.nodes),
        given.crowds or max(2, -(-given.nodes // 1250)),
        faults,
        given.patience,
        json,
        svg,
        given.keep,
    )
