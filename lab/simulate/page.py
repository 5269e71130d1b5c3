"""`python -m lab.simulate.page [FIGURES]`: tables and plot of docs/scale.md, from the figures of a simulation.

FIGURES is what `--json` wrote; without it, those that are stored in docs/scale.json.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from lab.simulate import report
from lab.simulate.options import parse
from lab.simulate.plot import plot
from lab.simulate.predictions import PREDICTIONS, SIZES, constants

DOCS: Final = Path(__file__).parents[2] / "docs"
_TABLE: Final = re.compile(r"(<!-- (\w+) -->\n).*?(?=<!-- end of \2 -->)", re.DOTALL)


def render(page: str, found: Mapping[str, Any]) -> str:
    """The page with the tables of these figures."""
    made = {
        "acts": acts_table(found),
        "tiers": tiers_table(found),
        "predictions": predictions_table(found),
    }
    return _TABLE.sub(lambda match: match[1] + made[match[2]], page)


def command(options: Mapping[str, Any]) -> str:
    """What is typed for a simulation with these options: the number of nodes, and what differs from its defaults."""
    plain = report.option_figures(parse([f"--nodes={options['nodes']}"]))
    given = {**options, "tiers": "node" if options["per_node"] else options["tiers"]}
    names = [name for name, value in plain.items() if name != "per_node" and given[name] != value]
    more = " ".join(f"--{name}={_argument(given[name])}" for name in names)
    return f"make simulate NODES={options['nodes']}" + (f" ARGS='{more}'" if more else "")


def _argument(value: object) -> str:
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return str(value).removesuffix(".0")


def acts_table(found: Mapping[str, Any]) -> str:
    """How long the nodes took after each act."""
    options = found["options"]
    rows = [
        f"{options['nodes']:,} nodes, {options['kernels']:,} of them with a kernel; lease services "
        f"{' - '.join(map(str, options['tiers']))}; {found['machine']}.",
        f"`{command(options)}`",
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
        "| tier | processes | CPU | of a core | busiest | memory | at its peak | messages | MB |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for tier in found["tiers"]:
        messages = f"{tier['messages']:,}" if tier["messages"] else ""
        cells = (tier["processes"], f"{tier['cpu_seconds']:,.0f} s", f"{tier['percent']:.0f} %")
        size = f"{tier['bytes'] / 1e6:,.0f}" if tier.get("bytes") else ""  # of services since 0.3.0
        usual = f"{median(mib[tier['tier']] for _, _, mib in found['samples']):,.0f} MiB"
        more = (f"{tier['busiest_percent']:.0f} %", usual, f"{tier['peak_mib']:,} MiB", messages, size)
        rows.append(f"| {tier['tier']} | " + " | ".join(map(str, (*cells, *more))) + " |")
    return "\n".join((*rows, "", ""))


def predictions_table(found: Mapping[str, Any]) -> str:
    """What the formulas say at each size, and what was measured at the first."""
    known, (first, *larger) = constants(found), SIZES
    rows = [
        f"b = {known.lease_bytes:.0f} bytes, m = {1e6 * known.message:.0f} µs, r = {1e6 * known.report:.0f} µs, "
        f"f = {1e6 * known.fold:.0f} µs, p = {1e6 * known.plan:.0f} µs, w = {1e6 * known.whole:.0f} µs, "
        f"u = {1024 * known.stream:.0f} KiB, v = {1024 * known.waiting:.0f} KiB:",
        "",
        f"| N nodes | | {first:,} | measured |" + "".join(f" {size:,} |" for size in larger) + " |",
        "|---|---|" + "--:|" * (len(SIZES) + 1) + "---|",
    ]
    for row in PREDICTIONS:
        measured, predicted = row.measured(found), [_number(row.figure(size, known)) for size in SIZES]
        cells = (predicted[0], "" if measured is None else _number(measured), *predicted[1:], row.unit)
        rows.append(f"| {row.words} | {row.formula} | " + " | ".join(cells) + " |")
    return "\n".join((*rows, "", ""))


def _seconds(value: float) -> str:
    return f"{1000 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2g}"


def _thinned(samples: Sequence[Any]) -> Iterator[Any]:
    """Yields as many samples as a plot shows."""
    step = max(1, len(samples) // 200)
    yield from samples[::step]


def main(arguments: Sequence[str]) -> None:
    """Writes the tables and the plot into the page."""
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
