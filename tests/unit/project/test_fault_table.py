"""The fault table of docs/operations.md is the one that is measured: the same rows, and figures that were kept."""

import json

from tests.faults.rows import FAULTS
from tests.faults.table import FIGURES, medians, shown, table


def test_the_page_has_the_rows_that_are_tried_with_the_figures_that_were_kept() -> None:
    """Another row or another wording: run its test with FLANNELETTE_FAULTS, then `python -m tests.faults.table`."""
    figures = json.loads(FIGURES.read_text())["faults"]
    assert list(figures) == list(FAULTS)
    assert shown() == table(figures)


def test_what_breaks_nothing_loses_nothing() -> None:
    figures = json.loads(FIGURES.read_text())["faults"]
    assert {figures[name]["lost"] for name, fault in FAULTS.items() if not fault.told} == {0}


def test_figures_are_the_medians_of_the_runs() -> None:
    runs = [{"fault": "a", "repaired_ms": ms, "sent": 100, "lost": lost} for ms, lost in ((9, 1), (1, 5), (5, 3))]
    document = medians([json.dumps(run) for run in (*runs, {**runs[0], "fault": "b"})])
    assert document["faults"] == {"a": {"repaired_ms": 5, "lost": 3}, "b": {"repaired_ms": 9, "lost": 1}}
    assert document["runs"] == 1
