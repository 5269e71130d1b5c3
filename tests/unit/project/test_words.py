"""Pages, protocols and alerts are in plain technical English: some words that hide their subject do not occur."""

import re
from pathlib import Path
from typing import Final

import pytest

from tests.paths import ROOT

HIDDEN: Final = re.compile(r"\b(somebody|anybody|whoever|put right|heard of|for keeps)\b", re.I)
TEXTS: Final = sorted([
    *(path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"),
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "proto").rglob("*.proto"),
    *(ROOT / "deploy" / "observability").iterdir(),
])  # fmt: skip
"""But CHANGELOG.md, which quotes former texts."""


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_text_names_its_subjects(path: Path) -> None:
    found = [line for line in path.read_text().splitlines() if HIDDEN.search(line)]
    assert found == []
