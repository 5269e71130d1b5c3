"""docs/architecture.md is true: its map, every file and function that it names, and its glossary."""

import ast
import re
from functools import cache
from typing import Final

import pytest

from tests.pages.architecture import PAGE, map_in_page, map_of_packages
from tests.paths import ROOT

TEXT: Final = PAGE.read_text()
STOPS: Final = re.findall(r"`((?:services|tests|lab|bench)/[\w/]+\.py)(?:::([\w.]+))?`", TEXT)


@cache
def names_in(path: str) -> frozenset[str]:
    """Functions, classes, methods (`Class.method`) and constants of a file."""
    found = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {target.id for target in targets if isinstance(target, ast.Name)}
        name = getattr(node, "name", None)
        if isinstance(name, str):
            found.add(name)
            found |= {f"{name}.{each.name}" for each in getattr(node, "body", ()) if hasattr(each, "name")}
    return frozenset(found)


def section(title: str) -> str:
    (found,) = re.findall(rf"^##+ {title}\n(.*?)(?=^##|\Z)", TEXT, re.M | re.S)
    return str(found)


@pytest.mark.parametrize(("path", "name"), sorted(set(STOPS)))
def test_a_file_and_a_function_of_the_page_exist(path: str, name: str) -> None:
    assert (ROOT / path).is_file()
    assert not name or name in names_in(path)


def test_the_map_is_that_of_the_packages() -> None:
    assert map_in_page() == map_of_packages(), "run `make map`"


@pytest.mark.parametrize(
    "title",
    ["A lease change", "A lost route", "A moved default route", "An acquire", "A repair of a firewall rule"],
)
def test_the_stops_of_a_path_are_numbered(title: str) -> None:
    rows = re.findall(r"^\| (\d+) \| `services/[\w/]+\.py::[\w.]+` \| .+ \|$", section(title), re.M)
    assert [int(row) for row in rows] == list(range(1, len(rows) + 1))
    assert len(rows) > 1


def test_the_glossary_is_sorted_and_short_and_has_the_terms_of_the_field() -> None:
    terms = re.findall(r"^\| \*\*(.+?)\*\* \| .+ \|$", section("Glossary"), re.M)
    assert terms == sorted(terms, key=str.lower)
    assert len(terms) <= 40
    assert {"IPAM", "underlay", "overlay", "reconcile", "desired state", "drift", "next hop"} <= set(terms)
