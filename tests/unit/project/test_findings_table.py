"""The table of docs/operations.md of what doctor says: its rows are those of the test, word for word."""

import json

from tests.findings.table import ALL, FIGURES, shown, table


def test_the_page_has_the_rows_that_are_tried_and_their_words() -> None:
    """Another row or another wording: `python -m tests.findings.table`, which says how to measure too."""
    assert shown() == table(json.loads(FIGURES.read_text())["found_ms"])


def test_every_row_says_problem_cause_and_evidence_and_what_cures_it() -> None:
    assert len(ALL) >= 25
    for name, fault in ALL.items():
        assert all((fault.problem, fault.cause, fault.evidence, fault.cure or fault.undo)), name
