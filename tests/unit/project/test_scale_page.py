"""docs/scale.md shows the stored figures of a simulation, and what they say about more nodes."""

import json
import os
import re
import shlex
import subprocess

import pytest

from lab.simulate.faults import FAULTS
from lab.simulate.options import parse
from lab.simulate.page import DOCS, command, render
from lab.simulate.plot import plot
from lab.simulate.predictions import PREDICTIONS, SIZES, constants
from lab.simulate.report import option_figures
from tests.paths import ROOT

STORED = json.loads((DOCS / "scale.json").read_text())


def test_tables_and_plot_are_those_of_the_stored_figures() -> None:
    page = (DOCS / "scale.md").read_text()
    assert render(page, STORED) == page, "python -m lab.simulate.page"
    assert plot(STORED) == (DOCS / "scale.svg").read_text()


def test_the_command_of_the_page_is_the_simulation_whose_figures_it_shows() -> None:
    typed = re.findall(r"^`(make simulate .*)`$", (DOCS / "scale.md").read_text(), re.MULTILINE)
    assert len(typed) == 1
    assert typed_options(typed[0]) == STORED["options"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--nodes=5000"],
        ["--nodes=40", "--tiers=node", "--faults=none", "--crowds=3", "--kernels=0"],
        ["--nodes=60", "--minutes=0.05", "--churn=4", "--tiers=1,2", "--faults=store,nodes", "--away=0.5"],
    ],
)
def test_the_command_of_a_simulation_gives_its_options(arguments: list[str]) -> None:
    options = option_figures(parse(arguments))
    assert typed_options(command(options)) == options


def typed_options(typed: str) -> dict[str, object]:
    """As make hands them on."""
    make, *arguments = shlex.split(typed)
    # Without the variables of a make that runs the tests.
    own = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    said = subprocess.run(
        [make, "--dry-run", *arguments], capture_output=True, text=True, cwd=ROOT, check=True, env=own
    )
    return option_figures(parse(shlex.split(said.stdout.partition("-m lab.simulate ")[2], comments=True)))


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


def test_what_was_measured_is_within_a_factor_of_two_of_what_is_predicted() -> None:
    known = constants(STORED)
    pairs = [
        (row.figure(SIZES[0], known), found) for row in PREDICTIONS if (found := row.measured(STORED)) is not None
    ]
    assert len(pairs) == len(STORED["options"]["tiers"]), "the peak of a service of each tier"
    assert all(predicted / 2 < found < predicted * 2 for predicted, found in pairs), pairs
