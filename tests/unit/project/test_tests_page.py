"""tests/README.md names files and packages that exist, and every room of tests."""

import re
from typing import Final

import pytest

from tests.paths import ROOT

TEXT: Final = (ROOT / "tests/README.md").read_text()
NAMED: Final = sorted(set(re.findall(r"\b(tests/[\w/]+(?:\.py)?)", TEXT)))


@pytest.mark.parametrize("path", NAMED)
def test_what_the_page_names_exists(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_page_names_every_package_of_helpers_and_every_level() -> None:
    folders = {f"tests/{path.parent.name}" for path in (ROOT / "tests").glob("*/__init__.py")}
    assert folders <= set(NAMED)


def test_every_room_of_tests_is_in_the_table() -> None:
    rooms = {
        str(path.parent.relative_to(ROOT))
        for level in ("contract", "kernel")
        for path in (ROOT / "tests" / level).glob("*/__init__.py")
    }
    assert {room for room in rooms if not any(named.startswith(room) for named in NAMED)} == set()
