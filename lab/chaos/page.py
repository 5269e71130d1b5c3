"""`python -m lab.chaos.page`: the table of docs/operations.md, from the rows."""

import re
from pathlib import Path
from typing import Final

from lab.chaos.table import FAULTS

PAGE: Final = Path(__file__).parents[2] / "docs/operations.md"
_TABLE: Final = re.compile(r"(<!-- chaos -->\n).*?(?=<!-- end of chaos -->)", re.DOTALL)


def render(page: str) -> str:
    """The page with the table."""
    rows = [
        "| fault | what happens | how it ends | right within | packets that may be lost |",
        "|---|---|---|--:|---|",
    ]
    for name, fault in FAULTS.items():
        only = f" ({fault.backends[0]} only)" if fault.backends else ""
        rows.append(f"| {name} | {fault.does}{only} | {fault.undone} | {fault.within:.0f} s | {fault.loses.value} |")
    return _TABLE.sub(lambda match: match[1] + "\n".join(("", *rows, "", "")), page)


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
