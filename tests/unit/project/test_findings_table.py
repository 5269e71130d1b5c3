"""The table of docs/operations.md of what doctor says: its rows are those of the test, word for word."""

import json
import re

from tests.findings.table import ALL, FAULTS, FIGURES, figures, shown, table


def test_the_page_has_the_rows_that_are_tried_and_their_words() -> None:
    """Another row or another wording: `python -m tests.findings.table`, which says how to measure too."""
    assert shown() == table(json.loads(FIGURES.read_text())["found_ms"])


def test_a_row_without_a_time_says_so_and_stays_so_when_another_is_measured() -> None:
    name = next(iter(FAULTS))
    line = json.dumps({"fault": name, "version": FAULTS[name].versions[0], "found_ms": 12})
    found = figures([line], {})["found_ms"]
    assert found == {name: 12}
    ends = [row.rsplit("|", 2)[1].strip() for row in table(found).splitlines()[2:]]
    assert sorted(set(ends)) == ["12 ms", "not measured", "the next check"]


def test_a_row_quotes_doctor_from_beginning_to_end() -> None:
    """The tests that try the faults compare each text as a whole; a part of one would leave a quotation open here."""
    for row in shown().splitlines()[2:]:
        for cell in re.split(r"(?<!\\)\|", row):
            assert cell.count("`") % 2 == 0, row
    for name, fault in ALL.items():
        assert fault.problem.endswith("."), name
        assert fault.cause.endswith((".", "*")) or (fault.cause.endswith(":") and fault.cure), name


def test_every_row_says_problem_cause_and_evidence_and_what_cures_it() -> None:
    assert len(ALL) >= 25
    for name, fault in ALL.items():
        assert all((fault.problem, fault.cause, fault.evidence, fault.cure or fault.undo)), name
