"""`make house`: figures that say how easily a newcomer finds the way in the tree, beside those of the last release.

They are figures to know, not limits: what is too long or too deep is a matter of judgement.
"""

import ast
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final

from tests.paths import ROOT
from tests.upgrade.releases import LAST, files_of

PACKAGE: Final = "flannelette"
SERVICES: Final = ("lease", "dataplane", "masq", "cloud", "ctl", "flanneld")
"""Packages whose inside a test had better not import: `core` and `runtime` are libraries."""
SMALL: Final = 30
"""Lines: a shorter module has hardly a whole idea in it."""
MOST_CHANGING: Final = 12
"""Attributes that a reader of a class can keep in mind."""
WAYS: Final[Mapping[str, int]] = {
    "A lease change": 408,
    "A lost route": 343,
    "A moved default route": 763,
    "An acquire": 538,
    "A repair of a firewall rule": 155,
}
"""Functions of each way in release 0.2.0, by `python -m tests.ways 0.2.0`. Two runs differ by some percent; on a busy
machine that of a repair by more, as not all of masq's look at other programs' rules comes within a second."""


class Tree:
    """The sources of services/ and tests/ below a directory, parsed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sources = {path: path.read_text() for path in sorted((root / "services").rglob("*.py"))}
        self.parsed = {path: ast.parse(text) for path, text in self.sources.items()}

    def figures(self) -> dict[str, str]:
        """Returns each figure as text, by its name."""
        lines = sum(text.count("\n") for text in self.sources.values())
        large = sorted(self.changing_attributes().items(), key=lambda row: (-row[1], row[0]))
        inside, functions = self.inside_tests()
        importers = Counter(self.importers().values())
        return {
            "statements, without docstrings": f"{sum(map(statements, self.parsed.values())):,}",
            "lines": f"{lines:,}",
            "modules beside __init__": f"{len(self.modules)}",
            f"modules under {SMALL} lines": f"{sum(text.count(chr(10)) < SMALL for text in self.modules.values())}",
            "modules with one importer": f"{importers[1]}",
            "share of import lines": f"{sum(map(import_lines, self.parsed.values())) / lines:.1%}",
            f"classes with over {MOST_CHANGING} changing attributes": f"{len(large)}",
            **{f"  {name}": f"{count}" for name, count in large[:6]},
            "tests that import a service's inside": f"{inside / functions:.0%} of {functions:,}",
        }

    @cached_property
    def modules(self) -> dict[Path, str]:
        """The text of each module that is no package."""
        return {path: text for path, text in self.sources.items() if path.stem != "__init__"}

    def importers(self) -> dict[Path, int]:
        """Counts the modules that import each module; an entry point, which none imports, is left out."""
        found: Counter[Path] = Counter()
        for path, tree in self.parsed.items():
            found.update(set(self._imported(tree)) - {path})
        return {path: found[path] for path in self.modules if found[path]}

    def changing_attributes(self) -> dict[str, int]:
        """Counts the attributes that methods but `__init__` assign, of classes that have too many."""
        counted = {
            f"{path.relative_to(self.root / 'services').with_suffix('')}::{node.name}": len(changing(node))
            for path, tree in self.parsed.items()
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
        }
        return {name: count for name, count in counted.items() if count > MOST_CHANGING}

    def inside_tests(self) -> tuple[int, int]:
        """Counts the test functions in files that import a service's inside, and all test functions."""
        inside = total = 0
        for path in (self.root / "tests").rglob("test_*.py"):
            tree = ast.parse(path.read_text())
            count = sum(isinstance(node, FUNCTIONS) and node.name.startswith("test_") for node in ast.walk(tree))
            total += count
            inside += count if any(map(is_inside, imported_names(tree))) else 0
        return inside, total

    def _imported(self, tree: ast.Module) -> Iterator[Path]:
        for name in imported_names(tree):
            place = self.root.joinpath(*name.removeprefix(f"{PACKAGE}.").split("."))
            for path in (place.with_suffix(".py"), place.parent.with_suffix(".py")):  # a module, or a name in it
                if path in self.sources:
                    yield path
                    break


FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def statements(tree: ast.Module) -> int:
    """Counts statements, without docstrings and the texts below attributes."""
    return sum(isinstance(node, ast.stmt) and not is_text(node) for node in ast.walk(tree))


def is_text(node: ast.stmt) -> bool:
    """Whether a statement is a string alone."""
    value = node.value if isinstance(node, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def import_lines(tree: ast.Module) -> int:
    """Counts the lines of import statements."""
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    return sum((node.end_lineno or node.lineno) - node.lineno + 1 for node in found)


def imported_names(tree: ast.Module) -> Iterator[str]:
    """Yields each imported name in full, such as `flannelette.services.core.family.IPV4`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{each.name}" for each in node.names)


def is_inside(name: str) -> bool:
    """Whether an imported name is in one of the services; until 0.2 the import name was `services`."""
    first, second, *_ = (*name.removeprefix(f"{PACKAGE}.").split("."), "")
    return first == "services" and second in SERVICES


def changing(node: ast.ClassDef) -> set[str]:
    """Returns the attributes that a class assigns to itself outside of `__init__`."""
    methods = (each for each in node.body if isinstance(each, FUNCTIONS) and each.name != "__init__")
    return {
        each.attr
        for method in methods
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and is_self(each.value)
    }


def is_self(node: ast.expr) -> bool:
    """Whether an expression is the name `self`."""
    return isinstance(node, ast.Name) and node.id == "self"


def unsigned() -> list[str]:
    """Returns the packages that do not say in a sentence what is in them."""
    packages = [path for top in ("services", "tests") for path in (ROOT / top).rglob("__init__.py")]
    return [str(path.relative_to(ROOT)) for path in packages if not ast.get_docstring(ast.parse(path.read_text()))]


def main() -> None:
    """Prints the figures, those of the ways last."""
    with tempfile.TemporaryDirectory() as directory:
        before = Tree(files_of(LAST, Path(directory), "services", "tests")).figures()
    now = Tree(ROOT).figures()
    print(f"{'services/':58} {'now':>12} {LAST:>12}")
    for name, figure in now.items():
        print(f"{name:58} {figure:>12} {before.get(name, ''):>12}")
    print("functions of the ways of docs/architecture.md, traced (which: python -m tests.ways --names)", flush=True)
    done = subprocess.run([sys.executable, "-m", "tests.ways"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"  not traced: {done.stderr.strip().splitlines()[-1]}")
    for line in done.stdout.splitlines():
        count, _, title = line.strip().partition(" ")
        print(f"  {title:56} {count:>12} {WAYS[title]:>12}" if title in WAYS else line)


if __name__ == "__main__":
    main()
