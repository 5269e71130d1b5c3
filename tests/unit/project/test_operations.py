"""docs/operations.md: the services say what the page says that they say."""

import re
from typing import Final

import pytest

from tests.paths import ROOT

PAGE: Final = (ROOT / "docs/operations.md").read_text()
SOURCES: Final = " ".join(path.read_text() for path in (ROOT / "services").rglob("*.py"))
_PARTS: Final = re.compile(r'"\s*\n\s*f?"')


def rows() -> list[list[str]]:
    lines = (line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line)
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


@pytest.mark.parametrize("said", sorted({row[2] for row in rows()[1:] if row[2].startswith("`")}))
def test_what_the_page_quotes_is_what_a_service_says(said: str) -> None:
    (quoted,) = re.findall(r"^`([^`]+)`", said)
    assert quoted in _PARTS.sub("", SOURCES)


@pytest.mark.parametrize("flag", sorted(set(re.findall(r"`(--[a-z-]+)`", PAGE))))
def test_a_flag_of_the_page_is_one(flag: str) -> None:
    underscored = flag.removeprefix("--").replace("-", "_")
    known = re.search(rf"\b{underscored}_?: ", SOURCES) or flag == "--allocate-node-cidrs"  # that one is Kubernetes'
    assert known
