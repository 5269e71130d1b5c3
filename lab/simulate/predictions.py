"""What a simulation says about more nodes: formulas, their constants, and what was measured beside them. Pure."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SIZES: Final = (5_000, 50_000, 500_000)
_LEAF_NODES: Final = 625
"""Nodes of one relay in the predictions."""
_DAY: Final = 86_400
_LEASE_KIB: Final = 4.3
"""KiB in a lease service for one lease, with its part of the log."""
_PEER_KIB: Final = 2.6
"""KiB in a dataplane for one peer."""
_EMPTY_SERVICE: Final = 46
_EMPTY_DATAPLANE: Final = 52


@dataclass(frozen=True, slots=True)
class Constants:
    """What one node, one lease and one message cost. CPU in seconds, memory in MiB."""

    lease_bytes: float
    """Size of a lease in a message, in bytes."""
    stream: float
    """A relay: a stream, when all nodes come at once."""
    waiting: float
    """The lease service at etcd: the stream of a node, and a call of it that waits while etcd is away."""
    message: float = 82e-6
    """A lease service: a change to one watcher."""
    report: float = 430e-6
    """A lease service: a report of a node."""
    fold: float = 110e-6
    """A node: a message, until its change is in the table."""
    plan: float = 150e-6
    """A node: a change, from the table to the plan."""
    whole: float = 17e-6
    """A node: each lease of a first plan."""


def _nothing_measured(_: Mapping[str, Any]) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the predictions: a figure at each size, and what a simulation of the first size has measured."""

    words: str
    formula: str
    unit: str
    figure: Callable[[int, Constants], float]
    measured: Callable[[Mapping[str, Any]], float | None] = _nothing_measured


def constants(found: Mapping[str, Any]) -> Constants:
    """Returns the constants that the simulation has measured, beside those of the benches."""
    restart = next((act for act in found["acts"] if act["name"] == "nodes"), None)
    nodes, services = found["options"]["nodes"], found["tiers"][1:-1]
    top, leaf = services[0], services[-1]
    below = nodes / leaf["processes"] * streams_of_a_node(found, len(services) - 1)
    return Constants(
        lease_bytes=restart["bytes"]["nodes"] / nodes / restart["leases"] if restart else 100.0,
        stream=_beyond_table(leaf, nodes) / below,
        waiting=_beyond_table(top, nodes) / nodes * top["processes"],
    )


def _beyond_table(tier: Mapping[str, Any], nodes: int) -> float:
    """MiB of one service of the tier at its peak, without its table."""
    return max(0.0, float(tier["peak_mib"]) / float(tier["processes"]) - _table(nodes))


def streams_of_a_node(found: Mapping[str, Any], tier: int) -> int:
    """What a lease service of this tier has for each node that is connected to it or to a relay below it.

    The stream that comes in; where nodes are connected, a connection; in a relay, the stream to the one above.
    """
    return 1 + (tier == len(found["options"]["tiers"]) - 1) + (tier > 0)


def _table(nodes: int) -> float:
    """MiB of a lease service with so many leases, to which nobody is connected."""
    return _EMPTY_SERVICE + nodes * _LEASE_KIB / 1024


def _changes(nodes: int) -> float:
    """A second, when each node changes once a day."""
    return nodes / _DAY


def _peak(words: str, below: int, streams: int) -> Row:
    """The memory of a lease service with so many nodes below it (0: all), each with so many streams; 1: at etcd."""

    def figure(nodes: int, known: Constants) -> float:
        return _table(nodes) + (below or nodes) * (streams * known.stream if streams > 1 else known.waiting)

    def measured(found: Mapping[str, Any]) -> float | None:
        nodes = found["options"]["nodes"]
        for number, tier in enumerate(found["tiers"][1:-1]):
            is_such = streams_of_a_node(found, number) == streams
            if nodes == SIZES[0] and is_such and nodes == tier["processes"] * (below or nodes):
                return float(tier["peak_mib"] / tier["processes"])
        return None

    each = f"{streams} · u" if streams > 1 else "v"
    of_nodes = f"N · {_LEASE_KIB} KiB + {below:,} · {each}" if below else f"N · ({_LEASE_KIB} KiB + {each})"
    return Row(words, f"{_EMPTY_SERVICE} MiB + {of_nodes}", "MiB", figure, measured)


PREDICTIONS: Final = (
    Row("relays of 625 nodes", "N / 625", "", lambda n, c: n / _LEAF_NODES),
    Row("a snapshot", "N · b", "MB", lambda n, c: n * c.lease_bytes / 1e6),
    Row(
        "all snapshots of one relay, after its restart",
        "625 · N · b",
        "GB",
        lambda n, c: _LEAF_NODES * n * c.lease_bytes / 1e9,
    ),
    Row("changes a second, if each node has one a day", "N / 86,400", "", lambda n, c: _changes(n)),
    Row(
        "a relay: CPU of these changes, of a core",
        "N / 86,400 · 625 · m",
        "%",
        lambda n, c: 100 * _changes(n) * _LEAF_NODES * c.message,
    ),
    Row(
        "a relay: most changes a second that go out one by one",
        "1 / (625 · m)",
        "",
        lambda n, c: 1 / (_LEAF_NODES * c.message),
    ),
    Row("the same without relays: one service for all nodes", "1 / (N · m)", "", lambda n, c: 1 / (n * c.message)),
    Row(
        "a node: CPU of these changes, of a core",
        "N / 86,400 · (f + p)",
        "%",
        lambda n, c: 100 * _changes(n) * (c.fold + c.plan),
    ),
    Row("a node: CPU of its first plan", "N · w", "s", lambda n, c: n * c.whole),
    Row(
        "a node: memory of its dataplane",
        f"{_EMPTY_DATAPLANE} MiB + N · {_PEER_KIB} KiB",
        "MiB",
        lambda n, c: _EMPTY_DATAPLANE + n * _PEER_KIB / 1024,
    ),
    _peak("a relay of 625 nodes: memory at its peak", _LEAF_NODES, 3),
    _peak("a relay of 2,500 nodes: the same", 2500, 3),
    _peak("a relay above others, with 5,000 nodes below them: the same", 5000, 2),
    _peak("the top: the same", 0, 1),
    Row(
        "the top: until all nodes have reported a change",
        "max(N / 1,000, 0.05)",
        "s",
        lambda n, c: max(n / 1000, 0.05),
    ),
    Row(
        "the top: CPU of reports while changes go on, of a core",
        "max(1,000, N / 60) · r",
        "%",
        lambda n, c: 100 * max(1000, n / 60) * c.report,
    ),
)
