"""`python -m lab.chaos.page [FIGURES]`: the table of docs/operations.md, from the rows and the figures of a run.

FIGURES is what `--json` wrote; without it, those that are stored in docs/chaos.json.
"""

import json
import os
import platform
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from lab.chaos.table import FAULTS

DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = DOCS / "operations.md"
STORED: Final = DOCS / "chaos.json"
_TABLE: Final = re.compile(r"(<!-- chaos -->\n).*?(?=<!-- end of chaos -->)", re.DOTALL)
_HEAD: Final = (
    "| fault | what happens | how it ends | may be lost | times | lost | repaired after | slowest | at most |\n"
    "|---|---|---|---|--:|--:|--:|--:|--:|"
)
_GROWTH: Final = (
    "| service | processes | longest | descriptors | threads | memory | left by faults |\n"
    "|---|--:|--:|--:|--:|--:|--:|"
)
_SEEN: Final = "| fault | what shows that it had an effect | seen |\n|---|---|--:|"
_MOST: Final = ("seconds", "descriptors", "threads", "mib", "left")


def largest(growth: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """What the processes of each kind of service have grown by, at most; each figure may be another process's."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for each in growth:
        kinds.setdefault(each["service"], []).append(each)
    return {
        kind: {"processes": len(some)} | {name: round(max(one[name] for one in some), 1) for name in _MOST}
        for kind, some in sorted(kinds.items())
    }


def render(page: str, found: Mapping[str, Any]) -> str:
    """The page with the table."""
    rows = [_summary(found), "", _HEAD]
    for name, fault in FAULTS.items():
        only = f" ({fault.backends[0]} only)" if fault.backends else ""
        measured = "|  |  |  |  |"
        if figures := found["faults"].get(name):
            seconds = " | ".join(f"{figures[key]:.2f} s" for key in ("repaired", "slowest"))
            measured = f"| {figures['times']} | {figures['lost']:,} | {seconds} |"
        words = f"| {name} | {fault.does}{only} | {fault.undone} | {fault.loses.value}"
        rows.append(f"{words} {measured} {fault.within:.0f} s |")
    if growth := found.get("growth"):
        rows += ["", _GROWTH]
        for title, most in growth.items():
            memory = f"{most['mib']:+.0f} MiB | {most['left']:.0f} MiB"
            numbers = f"{most['descriptors']:+} | {most['threads']:+} | {memory}"
            rows.append(f"| {title} | {most['processes']} | {most['seconds'] / 60:.0f} min | {numbers} |")
    if seen := {name: each for name, each in found["faults"].items() if "seen" in each and FAULTS[name].shows}:
        rows += ["", _SEEN]
        rows += [
            f"| {name} | {FAULTS[name].shows} | {each['seen']} of {each['times']} |" for name, each in seen.items()
        ]
    return _TABLE.sub(lambda match: match[1] + "\n".join(("", *rows, "", "")), page)


def _summary(found: Mapping[str, Any]) -> str:
    happened = sum(each["times"] for each in found["faults"].values())
    unexplained = found["lost_without_fault"] or "none"
    return (
        f"SEED={found['seed']}: {happened} faults in {found['seconds'] / 60:.0f} minutes, {found['sent']:,} pings, "
        f"{found['lost']:,} lost, {unexplained} of them without a fault; {found['machine']}. "
        "`repaired after` is the median."
    )


def main(arguments: Sequence[str]) -> None:
    """Writes the table into the page."""
    if arguments:
        found = json.loads(Path(arguments[0]).read_text())
        linux = ".".join(platform.release().split(".")[:2])
        found["machine"] = f"{os.cpu_count()} cores with a load of {os.getloadavg()[2]:.0f}, Linux {linux}"
        found["growth"] = largest(found["growth"])
        STORED.write_text(json.dumps(found, indent=1) + "\n")
    PAGE.write_text(render(PAGE.read_text(), json.loads(STORED.read_text())))


if __name__ == "__main__":
    main(sys.argv[1:])
