"""`python -m lab.simulate.page [FIGURES]`: tables and plot of docs/scale.md, from the figures of a simulation.

FIGURES is what `--json` wrote; without it, those that are stored in docs/scale.json.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from lab.simulate.plot import plot

DOCS: Final = Path(__file__).parents[2] / "docs"
SIZES: Final = (5_000, 50_000, 500_000)
_LEAF_NODES: Final = 625
"""Nodes of one relay in the predictions."""
_DAY: Final = 86_400
_TABLE: Final = re.compile(r"(<!-- (\w+) -->\n).*?(?=<!-- end of \2 -->)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Constants:
    """What one node, one lease and one message cost. CPU in seconds, memory in MiB."""

    lease_bytes: float
    """Of a lease in a message."""
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
    own_stream: float = 26 / 1024
    """At the top: the stream by which a relay says that one node is connected."""
    lease: float = 4.3 / 1024
    """In a lease service: one lease, with its part of the log."""
    peer: float = 2.6 / 1024
    """In a dataplane: one peer."""
    empty_service: float = 46.0
    empty_dataplane: float = 52.0


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the predictions: a figure at each size."""

    words: str
    formula: str
    unit: str
    figure: Callable[[int, Constants], float]


def _changes(nodes: int) -> float:
    """A second, when each node changes once a day."""
    return nodes / _DAY


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
        "a node: memory of its dataplane", "52 MiB + N · 2.6 KiB", "MiB", lambda n, c: c.empty_dataplane + n * c.peer
    ),
    Row("a relay: memory of its table", "46 MiB + N · 4.3 KiB", "MiB", lambda n, c: c.empty_service + n * c.lease),
    Row(
        "the top: memory with the nodes' streams",
        "46 MiB + N · (4.3 + 26) KiB",
        "MiB",
        lambda n, c: c.empty_service + n * (c.lease + c.own_stream),
    ),
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


def constants(found: Mapping[str, Any]) -> Constants:
    """Those that the simulation has measured, beside those of the benches."""
    restart = next((act for act in found["acts"] if act["name"] == "nodes"), None)
    nodes = found["options"]["nodes"]
    return Constants(lease_bytes=restart["bytes"] / nodes / restart["leases"] if restart else 100.0)


def render(page: str, found: Mapping[str, Any]) -> str:
    """The page with the tables of these figures."""
    made = {
        "acts": acts_table(found),
        "tiers": tiers_table(found),
        "predictions": predictions_table(constants(found)),
    }
    return _TABLE.sub(lambda match: match[1] + made[match[2]], page)


def acts_table(found: Mapping[str, Any]) -> str:
    """How long the nodes took after each act."""
    options = found["options"]
    rows = [
        f"{options['nodes']:,} nodes, {options['kernels']:,} of them with a kernel; lease services "
        f"{' - '.join(map(str, options['tiers']))}; {found['machine']}.",
        "",
        "| | half | 99 % | the last | the last own lease | differ from etcd |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for number, act in enumerate(found["acts"], 1):
        cells = " | ".join(_seconds(act["told"][name]) if act["told"] else "" for name in ("p50", "p99", "last"))
        own = _seconds(act["leased"]["last"]) if act["leased"] else ""
        rows.append(f"| {number} {act['words']} | {cells} | {own} | {len(act['differences']) or 'none'} |")
    return "\n".join((*rows, "", ""))


def tiers_table(found: Mapping[str, Any]) -> str:
    """What each tier cost."""
    rows = [
        "| tier | processes | CPU | of a core | busiest | peak memory | messages |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for tier in found["tiers"]:
        messages = f"{tier['messages']:,}" if tier["messages"] else ""
        cells = (tier["processes"], f"{tier['cpu_seconds']:,.0f} s", f"{tier['percent']:.0f} %")
        more = (f"{tier['busiest_percent']:.0f} %", f"{tier['peak_mib']:,} MiB", messages)
        rows.append(f"| {tier['tier']} | " + " | ".join(map(str, (*cells, *more))) + " |")
    return "\n".join((*rows, "", ""))


def predictions_table(known: Constants) -> str:
    """What the formulas say, at each size."""
    rows = [
        f"b = {known.lease_bytes:.0f} bytes, m = {1e6 * known.message:.0f} µs, r = {1e6 * known.report:.0f} µs, "
        f"f = {1e6 * known.fold:.0f} µs, p = {1e6 * known.plan:.0f} µs, w = {1e6 * known.whole:.0f} µs:",
        "",
        "| N nodes | |" + "".join(f" {size:,} |" for size in SIZES) + " |",
        "|---|---|" + "--:|" * len(SIZES) + "---|",
    ]
    for row in PREDICTIONS:
        cells = "".join(f" {_number(row.figure(size, known))} |" for size in SIZES)
        rows.append(f"| {row.words} | {row.formula} |{cells} {row.unit} |")
    return "\n".join((*rows, "", ""))


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _thinned(samples: Sequence[Any]) -> Iterator[Any]:
    """As many as a plot shows."""
    step = max(1, len(samples) // 200)
    yield from samples[::step]


def main(arguments: Sequence[str]) -> None:
    """Writes the page."""
    stored = DOCS / "scale.json"
    found = json.loads(Path(arguments[0]).read_text() if arguments else stored.read_text())
    if arguments:
        linux = ".".join(platform.release().split(".")[:2])
        found["machine"] = f"{os.cpu_count()} cores, Linux {linux}, Python {platform.python_version()}"
        found["samples"] = list(_thinned(found["samples"]))
        stored.write_text(json.dumps(found) + "\n")
    (DOCS / "scale.svg").write_text(plot(found))
    page = DOCS / "scale.md"
    page.write_text(render(page.read_text(), found))


if __name__ == "__main__":
    main(sys.argv[1:])
