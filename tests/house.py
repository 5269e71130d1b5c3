"""`make house`: the figures of the source tree that say how easily a newcomer finds the way in it.

They are figures to know, not limits: what is too long or too deep is a matter of judgement.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import grimp

from tests.paths import ROOT

SERVICES: Final = ("core", "runtime", "lease", "dataplane", "masq", "cloud", "ctl")
SMALL: Final = 60
"""Lines: a shorter module that has one importer belongs into that, unless it is a seam."""
LEAST_SIGN: Final = 60
"""Letters of a service's package docstring: what lives there, what may come in and what may not."""
TESTS: Final = ("unit", "contract", "kernel", "e2e", "compose", "kube")
"""Folders of test files, of which there may be many in one."""


def main() -> None:
    """Prints the figures."""
    lines, folders = lines_of("services"), folder_sizes()
    tests = lines_of("tests")
    print(f"lines             {sum(lines.values()):,} in services/ ({len(lines)} files), ", end="")
    print(f"{sum(tests.values()):,} in tests/ ({len(tests)} files)")
    largest = sorted(folders.items(), key=lambda row: -row[1])[:8]
    show("largest folders", [f"{count:2} {name}" for name, count in largest])
    longest_files = sorted(lines.items(), key=lambda row: -row[1])[:8]
    show("longest files", [f"{count:4} {name}" for name, count in longest_files])
    show("small, 1 importer", [f"{lines[name]} {name}" for name in small_modules(lines)])
    show("packages, no sign", unsigned())
    print("levels of imports")
    for service in SERVICES:
        print(f"                  {levels(service):2} in services/{service}")
    print("stops of docs/architecture.md")
    for path, count in stops().items():
        print(f"                  {count:2} {path}")


def lines_of(directory: str) -> dict[str, int]:
    """How many lines each Python file below a directory of the repository has, by module."""
    return {module_of(path): len(path.read_text().splitlines()) for path in sources(directory)}


def folder_sizes() -> Counter[str]:
    """How many modules each folder has beside its sub-packages; folders of test files are left out."""
    helpers = (path for path in sources("tests") if path.relative_to(ROOT / "tests").parts[0] not in TESTS)
    paths = (path for path in (*sources("services"), *helpers) if path.stem != "__init__")
    return Counter(str(path.parent.relative_to(ROOT)) for path in paths)


def small_modules(lines: Mapping[str, int]) -> list[str]:
    """Short modules with one importer that are no entry point."""
    graph = services_graph()
    importers = {name: len(graph.find_modules_that_directly_import(name)) for name in graph.modules if name in lines}
    return [name for name, n in importers.items() if n == 1 and lines[name] < SMALL and is_module(name)]


def unsigned() -> list[str]:
    """Packages that do not say in a sentence what is in them."""
    packages = [path for top in ("services", "tests") for path in sources(top) if path.stem == "__init__"]
    said = {path: ast.get_docstring(ast.parse(path.read_text())) or "" for path in packages}
    short = (path for path, text in said.items() if len(text) < (LEAST_SIGN if is_service(path) else 1))
    return [str(path.relative_to(ROOT)) for path in short]


def levels(service: str) -> int:
    """The longest chain of imports inside a service; a module that is imported in a circle counts once."""
    graph = services_graph()
    inside = [name for name in graph.modules if f"{name}.".startswith(f"flannelette.services.{service}.")]
    return longest({name: graph.find_modules_directly_imported_by(name) for name in inside})


def longest(imports: Mapping[str, Iterable[str]]) -> int:
    """The longest chain among these modules."""

    @cache
    def height(name: str, above: frozenset[str] = frozenset()) -> int:
        inside = [other for other in imports[name] if other in imports and other not in above]
        return 1 + max((height(other, above | {name}) for other in inside), default=0)

    return max((height(name) for name in imports), default=0)


def stops() -> dict[str, int]:
    """How many functions each path of docs/architecture.md goes through."""
    sections = re.findall(r"^##+ (.+)\n((?:(?!^##).*\n)*)", (ROOT / "docs/architecture.md").read_text(), re.MULTILINE)
    counted = {title: len(re.findall(r"^\| \d+ \| `services/", text, re.MULTILINE)) for title, text in sections}
    return {title: count for title, count in counted.items() if count}


@cache
def services_graph() -> grimp.ImportGraph:
    """Who imports whom in services/."""
    return grimp.build_graph("flannelette")


def sources(directory: str) -> list[Path]:
    """The Python files below a directory of the repository."""
    return sorted((ROOT / directory).rglob("*.py"))


def module_of(path: Path) -> str:
    """`flannelette.services.core.leases.lease` of services/core/leases/lease.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = ("flannelette", *parts) if is_service(path) else parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_module(name: str) -> bool:
    """Whether the name is a file that is no entry point, not a package."""
    return not (ROOT / "proto" / name.replace(".", "/")).is_dir() and not name.endswith((".main", ".settings"))


def is_service(path: Path) -> bool:
    """Whether a file is below services/."""
    return path.is_relative_to(ROOT / "services")


def show(title: str, rows: list[str]) -> None:
    """How many, and each on a line of its own."""
    print(f"{title:17} {len(rows):2}", *sorted(rows, reverse=True), sep="\n                     ")


if __name__ == "__main__":
    main()
