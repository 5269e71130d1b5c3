"""The fault table of docs/operations.md: from the rows of tests/faults/rows.py and measured figures.

`python -m tests.faults.table FILE` takes what runs of tests/kernel/dataplane/test_fault_table.py have added to FILE,
keeps the medians in docs/faults.json, and writes the table into the page.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median_high
from typing import Any, Final

from tests.faults.rows import FAULTS
from tests.paths import ROOT

DOCS: Final = ROOT / "docs"
PAGE: Final = DOCS / "operations.md"
FIGURES: Final = DOCS / "faults.json"
_HEAD: Final = (
    "| fault | what the kernel does | what we do | repaired after | packets lost |\n|---|---|---|---|---|\n"
)
_TABLE: Final = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*")


def medians(lines: list[str]) -> dict[str, Any]:
    """Of the runs, by fault, with what they were measured on."""
    runs = [json.loads(line) for line in lines]
    names = dict.fromkeys(run["fault"] for run in runs)
    of = {name: [run for run in runs if run["fault"] == name] for name in names}
    figures = {
        name: {key: median_high(run[key] for run in found) for key in ("repaired_ms", "lost")}
        for name, found in of.items()
    }
    system = os.uname()
    kernel = f"{system.sysname} {system.release.split('-')[0]}, {system.machine}"
    machine = f"{os.cpu_count()} cores with a load of {os.getloadavg()[1]:.0f}, {kernel}"
    return {"machine": machine, "runs": min(map(len, of.values())), "faults": figures}


def table(figures: Mapping[str, Mapping[str, int]]) -> str:
    """In Markdown."""
    rows = []
    for name, fault in FAULTS.items():
        figure = figures[name]
        repaired = f"{figure['repaired_ms']} ms" if fault.told else "nothing to repair"
        rows.append(f"| {fault.what} | {fault.kernel} | {fault.ours} | {repaired} | {figure['lost']} |\n")
    return _HEAD + "".join(rows)


def shown() -> str:
    """The table that the page has."""
    (found,) = _TABLE.findall(PAGE.read_text())
    assert isinstance(found, str)
    return found


def _main() -> None:
    document = medians(Path(sys.argv[1]).read_text().splitlines())
    FIGURES.write_text(json.dumps(document, indent=2) + "\n")
    PAGE.write_text(_TABLE.sub(lambda _: table(document["faults"]), PAGE.read_text()))


if __name__ == "__main__":
    _main()
