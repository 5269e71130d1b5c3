"""Since which release each row of docs/configuration.md is there: docs/since.json; `make pages` adds new rows.

Options of backends have it in their declaration.
"""

import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tests.pages.reference.tables import Rows
from tests.paths import ROOT
from tests.upgrade.releases import COMMITS

FILE: Final = ROOT / "docs/since.json"
_NAMES: Final = re.compile(r"`([^`]+)`")


def recorded() -> dict[str, dict[str, str]]:
    """By table and row, the release."""
    known: dict[str, dict[str, str]] = json.loads(FILE.read_text())
    return known


def dated(table: str, rows: Rows, releases: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[str, ...]]:
    """The rows with their release before the last cell; `?`: it is not recorded."""
    for row in rows:
        yield *row[:-1], releases.get(table, {}).get(name_of(row), "?"), row[-1]


def name_of(row: tuple[str, ...]) -> str:
    """What a row is about: its key or flag."""
    name: str = _NAMES.findall(row[0])[0]
    return name


def record(tables: Mapping[str, Iterable[tuple[str, ...]]]) -> None:
    """Writes the file: new rows have the version in development, and rows that are gone are left out."""
    known, new = recorded(), in_development()
    names = {table: [name_of(row) for row in rows] for table, rows in tables.items()}
    now = {table: {name: known.get(table, {}).get(name, new) for name in found} for table, found in names.items()}
    FILE.write_text(json.dumps(now, indent=1) + "\n")


def in_development() -> str:
    """The version of pyproject.toml; the next minor one, if that has come out."""
    version: str = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    major, minor, _ = version.split(".")
    return f"{major}.{int(minor) + 1}.0" if version in COMMITS else version
