"""What `make house` counts is counted rightly, and every package says what is in it. No figure is a limit."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

from tests import house, ways
from tests.paths import ROOT

SOURCES = {
    "services/__init__.py": '"""Services."""\n',
    "services/lease/__init__.py": '"""Leases."""\n',
    "services/lease/book.py": """
        '''A book.'''

        import os
        from flannelette.services.lease.page import (
            Page,
        )

        class Book:
            '''A book of pages.'''

            length: int
            '''Pages.'''

            def __init__(self) -> None:
                self.first = Page(os.name)

            def turn(self, other) -> None:
                self.place, self.is_open = 1, True
                self.length += 1
                other.place = self.first
        """,
    "services/lease/page.py": "class Page: ...\n",
    "services/lease/main.py": """
        from flannelette.services.lease import book
        from flannelette.services.lease.book import Book
        """,
    "tests/test_a.py": """
        from flannelette.services.core.family import IPV4
        def test_core(): ...
        """,
    "tests/test_b.py": """
        from flannelette.services.lease.book import Book
        class TestBook:
            async def test_one(self): ...
            def test_two(self): ...
            def help(self): ...
        """,
}


def tree_in(directory: Path) -> house.Tree:
    for name, text in SOURCES.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(re.sub(r"^ {8}", "", text, flags=re.MULTILINE))
    return house.Tree(directory)


def test_every_package_says_what_is_in_it() -> None:
    assert house.unsigned() == []


def test_the_figures_of_a_tree(tmp_path: Path) -> None:
    tree = tree_in(tmp_path)
    book = tree.parsed[tmp_path / "services/lease/book.py"]
    assert house.statements(book) == 10
    assert house.import_lines(book) == 4
    assert [path.stem for path in tree.modules] == ["book", "main", "page"]
    assert {path.stem: count for path, count in tree.importers().items()} == {"book": 1, "page": 1}
    assert tree.inside_tests() == (2, 3)


def test_an_attribute_changes_if_a_method_but_the_constructor_assigns_it(tmp_path: Path) -> None:
    book = tree_in(tmp_path).parsed[tmp_path / "services/lease/book.py"]
    (found,) = (node for node in ast.walk(book) if isinstance(node, ast.ClassDef))
    assert house.changing(found) == {"place", "is_open", "length"}


def test_the_ways_are_those_of_the_architecture_page() -> None:
    assert list(ways.stops()) == list(ways.WAYS) == list(house.WAYS)


def test_a_traced_service_records_the_functions_that_are_called(tmp_path: Path) -> None:
    package = tmp_path / "services"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "main.py").write_text(
        "import sys\n"
        "class Loop:\n"
        "    def turn(self): return [each for each in map(lambda x: x, sys.argv[1:])]\n"
        "    def other(self): ...\n"
        "print(Loop().turn())\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", ROOT / "tests/traced.py", tmp_path / "calls", "services.main", "--one", "two"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("['--one', 'two']\n", "")
    rows = [line.split() for line in (tmp_path / "calls").read_text().splitlines()]
    names = [name for _, name in rows]
    assert names == ["services/main.py::Loop", "services/main.py::Loop.turn"]
    assert [int(at) for at, _ in rows] == sorted(int(at) for at, _ in rows)
