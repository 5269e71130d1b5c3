"""The table of docs/backends.md: what tests/kernel/dataplane/test_backends.py found, here and in the VM.

`python -m tests.pages.backends FILE...` takes the rows that runs have added to these files, keeps the last of each
backend in docs/backends.json, and writes the table into the page.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.kernel.dataplane.test_backends import BACKENDS
from tests.paths import ROOT

PAGE: Final = ROOT / "docs/backends.md"
RESULTS: Final = ROOT / "docs/backends.json"
_HEAD: Final = (
    "| backend | pods reach each other with packets up to | lost while a dataplane is killed and starts again | "
    "with a flanneld v0.28.9 | kernel |\n|---|---|---|---|---|\n"
)
_TABLE: Final = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*")


def table(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """In Markdown."""
    cells = (_cells(name, rows.get(name)) for name in sorted(BACKENDS))
    return _HEAD + "".join(f"| {' | '.join(row)} |\n" for row in cells)


def _cells(name: str, row: Mapping[str, Any] | None) -> tuple[str, ...]:
    if row is None:
        return name, "not run yet", "", "", ""
    sizes = ", ".join(f"{size} bytes ({family})" for family, size in row["sizes"].items())
    kernel = row["kernel"] + (" (VM)" if row["vm"] else "")
    return name, sizes, f"{row['lost']} of {row['sent']} pings", "yes" if row["flanneld"] else "not tried", kernel


def shown() -> str:
    """The table that the page has."""
    (found,) = _TABLE.findall(PAGE.read_text())
    assert isinstance(found, str)
    return found


def results() -> dict[str, dict[str, Any]]:
    """By backend."""
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text())
    return found


def _main() -> None:
    rows = results() if RESULTS.exists() else {}
    for line in (line for path in sys.argv[1:] for line in Path(path).read_text().splitlines()):
        row = json.loads(line)
        rows[row.pop("backend")] = row
    RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=2) + "\n")
    PAGE.write_text(_TABLE.sub(lambda _: table(rows), PAGE.read_text()))


if __name__ == "__main__":
    _main()
