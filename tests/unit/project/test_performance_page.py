"""docs/performance.md shows the stored results, all of them and no others."""

import json
import math
from xml.etree import ElementTree as ET

import pytest

from bench.__main__ import BENCHES
from bench.page import BESIDE, CONTENDERS, LINES, ROWS, number, render, table
from bench.plot import plot
from bench.sweep import DOCS, SIZES, beside, commands, merged

STORED = json.loads((DOCS / "performance.json").read_text())
SVG = "{http://www.w3.org/2000/svg}"


def test_table_and_plot_are_those_of_the_stored_results() -> None:
    page = (DOCS / "performance.md").read_text()
    text, drawn = render(page, STORED)
    assert text == page, "python -m bench.sweep --again"
    assert drawn == (DOCS / "performance.svg").read_text()
    assert table(STORED) in page
    assert "(performance.svg)" in page


def test_every_row_and_line_is_of_a_bench_that_the_sweep_runs() -> None:
    swept = {command[0] for command in commands(SIZES)}
    assert swept <= BENCHES.keys()
    assert {row.bench for row in ROWS} == swept
    assert {line.bench for line in LINES} <= swept


def test_every_row_has_a_figure_in_the_stored_results() -> None:
    for row in ROWS:
        found = [row.figure(result) for result in STORED["results"] if result["name"] == row.bench]
        assert any(value is not None for value in found), row.words


def test_every_row_beside_flanneld_has_a_figure_of_each_contender() -> None:
    found = {result["parameters"]["peers"]: result for result in STORED["results"] if result["name"] == "flanneld"}
    assert found.keys() == {int(command[2]) for command in beside(1)} == {row.peers for row in BESIDE}
    for row in BESIDE:
        told = {who for who in CONTENDERS if f"{who}_{row.figure}" in found[row.peers]}
        assert told | {"flanneld"} == set(CONTENDERS), row.words


def test_a_result_replaces_the_last_one_of_its_bench_and_size_on_such_a_machine() -> None:
    old, new, other = (
        {"name": name, "ours": ours, "parameters": {"peers": peers}}
        for name, ours, peers in (("burst", 1.0, 10), ("burst", 2.0, 10), ("burst", 3.0, 5))
    )
    stored = {"machine": "a", "results": [old, other]}
    assert merged(stored, "a", new) == {"machine": "a", "results": [other, new]}
    assert merged(stored, "b", new) == {"machine": "b", "results": [new]}


def test_the_machine_is_named_by_its_kind() -> None:
    cores, linux, python = STORED["machine"].split(", ")
    assert (cores.split()[1], linux.split()[0], python.split()[0]) == ("cores", "Linux", "Python")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (0.0123456, "0.0123"), (1.0, "1"), (12.345, "12.3"), (99.96, "100"), (1234.5, "1,234")],
)
def test_a_number_has_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_line_goes_down_when_the_figure_does() -> None:
    results = [{"name": "cold_start", "ours": 10.0 / size, "parameters": {"peers": size}} for size in (100, 1000)]
    root = ET.fromstring(plot(LINES, results, "a title"))  # noqa: S314 - made here
    (line,) = root.findall(f"{SVG}polyline")
    (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in line.attrib["points"].split())
    assert x1 < x2
    assert y1 < y2, "down is more in SVG"
    assert math.isclose(len(root.findall(f"{SVG}circle")), 2)


def test_without_results_there_is_still_a_plot() -> None:
    assert "a title" in plot(LINES, [], "a title")
