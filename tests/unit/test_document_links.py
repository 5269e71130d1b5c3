"""Every link between our pages leads somewhere, and every decision has a number of its own."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))


def anchors(page: Path) -> set[str]:
    """As forges make them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!\w+:)([^)#]*)(#[^)]*)?\)", page.read_text())
    for path, anchor in links:
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{path} is not there"
        assert not anchor or anchor[1:] in anchors(target), f"{path} has no {anchor}"


def test_every_decision_has_a_number_of_its_own_and_says_it() -> None:
    assert [n for n, times in Counter(path.name[:4] for path in DECISIONS).items() if times > 1] == []
    for path in DECISIONS:
        assert path.read_text().startswith(f"# {int(path.name[:4])}. "), path.name
