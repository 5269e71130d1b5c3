"""The options of a simulation, read from its command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

from lab.options import ArgumentParser, file_to_write

MOST_NODES: Final = 60_000
"""10.0.0.0/8 has 65,535 subnets."""
MOST_NODES_OF_THEIR_OWN: Final = 200
"""Largest number of nodes with a lease service each, of some 50 MiB: 10 GB in all."""
FAULTS: Final = ("services", "nodes", "store", "partition", "renumber")

_FAULTS_HELP: Final = """\
which faults happen, separated by commas, in this order: services (each lease service is restarted, one after the
other), nodes (each node is restarted likewise), store (etcd is away), partition (half of the lease services that
serve nodes are silent; where one serves all, half of the processes with nodes), renumber (all nodes come back with
another address and an empty kernel); `none`. Default: all"""
_TIERS_HELP: Final = """\
lease services a tier, etcd's first: `1` is one central service, `8` are eight at etcd, `1,2,8` is one with two tiers
of relays, `node` is one at etcd for each node. Default: three tiers:
one service; one for 5,000 nodes; one for 2,500 nodes, and two at least"""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a simulation."""

    nodes: int
    minutes: float
    churn: float
    tiers: tuple[int, ...]
    """Lease services of each tier, from etcd down."""
    per_node: bool
    """The only tier has a service for each node, which serves no other one."""
    kernels: int
    crowds: int
    faults: tuple[str, ...]
    away: float
    """Seconds for which etcd is away, and half of the nodes are."""
    patience: float
    json: Path | None
    svg: Path | None
    keep: Path | None

    @property
    def seconds(self) -> float:
        """The time in which churn, restarts and renumbering disturb the nodes, about; their recovery comes on top."""
        return 60 * self.minutes

    def has_kernel(self, number: int) -> bool:
        """Whether the node of this number plans its kernel: these are spread evenly."""
        return self.kernels > 0 and number * self.kernels // self.nodes != (number - 1) * self.kernels // self.nodes


def parse(arguments: Sequence[str]) -> Options:
    """The options of a command line. Raises BadOption."""
    parser = ArgumentParser(
        "python -m lab.simulate", description="Simulated nodes against real lease services and a real etcd."
    )
    add = parser.add_argument
    add("--nodes", type=int, default=1000, help=f"1 to {MOST_NODES:,}. Default: %(default)s")
    add(
        "--minutes",
        type=float,
        default=3.0,
        help="how long nodes are disturbed, about; store and partition add --away each, and every recovery its own "
        "time. Default: %(default)g",
    )
    add(
        "--churn",
        type=float,
        help="nodes a second that are replaced or get another address. Default: 1,000 / nodes, and 1 at most: "
        "each change goes to all nodes",
    )
    add("--tiers", default="", help=_TIERS_HELP)
    add(
        "--kernels",
        type=int,
        help="nodes that plan routes, neighbours and FDB entries for a simulated kernel, 8 MB of memory each for "
        "5,000 nodes; the others keep the table of leases only. "
        "Default: 500,000 / nodes, and 250 at most",
    )
    add(
        "--crowds",
        type=int,
        default=0,
        help="processes that run the nodes. Default: one for 1,250 nodes, and 2 at least",
    )
    add("--faults", default=",".join(FAULTS), help=_FAULTS_HELP)
    add(
        "--away",
        type=float,
        default=120.0,
        help="seconds for which etcd is away (store), and for which half of the nodes are cut off (partition). "
        "Default: %(default)g",
    )
    add(
        "--patience",
        type=float,
        help="seconds in which all nodes must have recovered from a fault. Default: nodes / 2, and 600 at "
        "least, for all share this machine",
    )
    add("--json", type=Path, help="file for the figures, written after each act")
    add("--svg", type=Path, help="file for a plot of the figures")
    add("--keep", type=Path, help="new directory for the logs and etcd's data, which stays. Default: a temporary one")
    given = parser.parse_args(arguments)
    if not 1 <= given.nodes <= MOST_NODES:
        parser.error(f"--nodes is {given.nodes}: use 1 to {MOST_NODES}")
    if not 0 < given.minutes <= 24 * 60:
        parser.error(f"--minutes is {given.minutes:g}: use more than 0, and a day at most")
    churn = min(1.0, 1000 / given.nodes) if given.churn is None else given.churn
    if not 0 <= churn <= 1000:
        parser.error(f"--churn is {churn:g}: use 0 to 1000 nodes a second")
    kernels = min(250, 500_000 // given.nodes) if given.kernels is None else given.kernels
    for name, value in (("kernels", kernels), ("crowds", given.crowds)):
        if value < 0:
            parser.error(f"--{name} is {value}: use 0 or more")
    per_node = given.tiers == "node"
    if per_node and given.nodes > MOST_NODES_OF_THEIR_OWN:
        most = f"{MOST_NODES_OF_THEIR_OWN} nodes at most: each has a lease service, of some 50 MiB"
        parser.error(f"--tiers is node, and --nodes is {given.nodes}: use {most}")
    try:
        tiers = (given.nodes,) if per_node else tuple(int(part) for part in given.tiers.split(",") if given.tiers)
    except ValueError:
        tiers = (0,)
    if any(count < 1 for count in tiers):
        parser.error(f"--tiers is {given.tiers!r}: write numbers like 1,2,8, or node")
    tiers = tiers or (1, -(-given.nodes // 5000), max(2, -(-given.nodes // 2500)))
    crowds = given.crowds or max(2, -(-given.nodes // 1250))
    if not 0 <= given.away <= 3600:
        parser.error(f"--away is {given.away:g}: use 0 to 3600 seconds")
    faults = tuple(part for part in given.faults.split(",") if part not in ("", "none"))
    if unknown := [fault for fault in faults if fault not in FAULTS]:
        parser.error(f"--faults names {unknown[0]!r}: use {', '.join(FAULTS)}, or none")
    if "partition" in faults and tiers[-1] == crowds == 1:
        one = "one lease service serves all nodes, which are one process: there is no half to cut off"
        parser.error(f"--faults has partition, but {one}; use --crowds 2, or --faults without it")
    if given.patience is not None and not 0 < given.patience < inf:
        parser.error(f"--patience is {given.patience:g}: use more than 0 seconds")
    json, svg = (path and file_to_write(name, path) for name, path in (("--json", given.json), ("--svg", given.svg)))
    return Options(
        given.nodes,
        given.minutes,
        churn,
        tiers,
        per_node,
        min(kernels, given.nodes),
        crowds,
        faults,
        given.away,
        max(600.0, given.nodes / 2) if given.patience is None else given.patience,
        json,
        svg,
        given.keep,
    )
