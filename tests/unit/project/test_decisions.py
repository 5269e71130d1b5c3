"""Every decision in docs/adr has a number of its own, and says it."""

from collections import Counter

from tests.paths import ROOT

DECISIONS = sorted((ROOT / "docs" / "adr").glob("*.md"))


def test_every_decision_has_a_number_of_its_own_and_says_it() -> None:
    assert [n for n, times in Counter(path.name[:4] for path in DECISIONS).items() if times > 1] == []
    for path in DECISIONS:
        assert path.read_text().startswith(f"# {int(path.name[:4])}. "), path.name
