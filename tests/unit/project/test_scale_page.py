"""docs/scale.md shows the stored figures of a simulation, and what they say about more nodes."""

import json

from lab.simulate.faults import FAULTS
from lab.simulate.page import DOCS, PREDICTIONS, SIZES, constants, render
from lab.simulate.plot import plot

STORED = json.loads((DOCS / "scale.json").read_text())


def test_tables_and_plot_are_those_of_the_stored_figures() -> None:
    page = (DOCS / "scale.md").read_text()
    assert render(page, STORED) == page, "python -m lab.simulate.page"
    assert plot(STORED) == (DOCS / "scale.svg").read_text()


def test_no_node_differed_in_the_stored_simulation() -> None:
    assert [act["name"] for act in STORED["acts"]] == ["start", "churn", *FAULTS]
    assert STORED["right"]
    assert not any(act["differences"] for act in STORED["acts"])


def test_the_page_explains_every_act() -> None:
    page = (DOCS / "scale.md").read_text()
    assert all(f"\n| {act['name']} | " in page for act in STORED["acts"])


def test_a_prediction_grows_with_the_nodes_unless_it_is_of_one_relay() -> None:
    known = constants(STORED)
    for row in PREDICTIONS:
        figures = [row.figure(size, known) for size in SIZES]
        assert figures in (sorted(figures), sorted(figures, reverse=True)), row.words
