"""The table of findings in docs/operations.md: from the rows of faults, and measured times.

`python -m tests.findings.table FILE` takes what a run of tests/kernel/cluster/test_silent_faults.py
with FLANNELETTE_FINDINGS=FILE has added to FILE, keeps the times in docs/findings.json, and writes the table into the
page. Without FILE it writes the table of the times that are kept.
"""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tests.findings.claim_rows import CLAIM_FAULTS
from tests.findings.fault import SilentFault
from tests.findings.file_rows import FILE_FAULTS
from tests.findings.firewall_rows import FIREWALL_FAULTS
from tests.findings.pod_rows import POD_FAULTS
from tests.findings.probe_rows import PROBE_FAULTS
from tests.findings.route_rows import ROUTE_FAULTS
from tests.findings.tunnel_rows import TUNNEL_FAULTS
from tests.findings.underlay_rows import UNDERLAY_FAULTS
from tests.findings.words import words
from tests.hosts.two_hosts import EXAMPLES
from tests.paths import ROOT

FAULTS: Final[Mapping[str, SilentFault]] = {
    **ROUTE_FAULTS,
    **POD_FAULTS,
    **UNDERLAY_FAULTS,
    **PROBE_FAULTS,
    **FIREWALL_FAULTS,
}
ALL: Final[Mapping[str, SilentFault]] = {**FAULTS, **TUNNEL_FAULTS, **FILE_FAULTS, **CLAIM_FAULTS}
"""With those that other tests try."""
PAGE: Final = ROOT / "docs" / "operations.md"
FIGURES: Final = ROOT / "docs" / "findings.json"
_HEAD: Final = "| fault | what `flannelette doctor` says | found after |\n|---|---|---|\n"
_TABLE: Final = re.compile(re.escape(_HEAD) + r"(?:\|.*\n)*")


def figures(lines: list[str], kept: Mapping[str, int]) -> dict[str, Any]:
    """Of one run, by fault: the first family of each, with what it was measured on. Others keep what they have."""
    found = {**kept}
    for run in map(json.loads, lines):
        if run["version"] == FAULTS[run["fault"]].versions[0]:
            found[run["fault"]] = run["found_ms"]
    system = os.uname()
    kernel = f"{system.sysname} {system.release.split('-')[0]}, {system.machine}"
    machine = f"{os.cpu_count()} cores with a load of {os.getloadavg()[1]:.0f}, {kernel}"
    return {"machine": machine, "found_ms": {name: found[name] for name in FAULTS if name in found}}


def table(found_ms: Mapping[str, int]) -> str:
    """In Markdown."""
    return _HEAD + "".join(_row(fault, found_ms.get(name)) for name, fault in ALL.items())


def shown() -> str:
    """The table that the page has."""
    (found,) = _TABLE.findall(PAGE.read_text())
    assert isinstance(found, str)
    return found


def _row(fault: SilentFault, milliseconds: int | None) -> str:
    own, peer = EXAMPLES[fault.versions[0]]
    said = words(own, peer) | {"directory": "/run", "n2": "n2", "root": ""}
    told = [fault.problem.format_map(said), fault.cause.format_map(said)]
    told += [f"`{fault.cure.format_map(said)}`"] if fault.cure else []
    measured = "not measured" if milliseconds is None else f"{milliseconds} ms"
    after = measured if fault.is_told else "the next check"
    cells = (fault.what or f"`{fault.act.format_map(said)}`", " ".join(told), after)
    return "".join(f"| {each.replace('|', chr(92) + '|').replace('*', '…')} " for each in cells) + "|\n"


def _main() -> None:
    if sys.argv[1:]:
        kept = json.loads(FIGURES.read_text())["found_ms"]
        document = figures(Path(sys.argv[1]).read_text().splitlines(), kept)
        FIGURES.write_text(json.dumps(document, indent=2) + "\n")
    kept = json.loads(FIGURES.read_text())["found_ms"]
    PAGE.write_text(_TABLE.sub(lambda _: table(kept), PAGE.read_text()))


if __name__ == "__main__":
    _main()
