"""`make house`: the figures of the source tree that say how easily a newcomer finds the way in it."""

import ast
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Final

import grimp

ROOT: Final = Path(__file__).parents[1]
SERVICES: Final = ("core", "runtime", "lease", "dataplane", "masq", "ctl")
MOST_MODULES: Final = 12
"""In one folder, beside its sub-packages."""
SMALL: Final = 60
"""Lines: a shorter module that has one importer belongs into that, unless it is a seam."""
LONG: Final = 300
"""Lines of a file."""


def main() -> None:
    """Prints the figures, and what is over a limit."""
    lines = {module_of(path): len(path.read_text().splitlines()) for path in sources("services")}
    graph = grimp.build_graph("services")
    importers = {name: graph.find_modules_that_directly_import(name) for name in graph.modules if name in lines}
    tests = sum(len(path.read_text().splitlines()) for path in sources("tests"))
    folders = Counter(str(path.parent.relative_to(ROOT)) for path in sources("services") if path.stem != "__init__")
    small = [name for name, by in importers.items() if len(by) == 1 and lines[name] < SMALL and is_no_sign(name)]
    unsigned = [str(path.relative_to(ROOT)) for path in sources("services") if is_unsigned(path)]
    print(f"lines            {sum(lines.values()):,} in services/ ({len(lines)} files), {tests:,} in tests/")
    show(
        f"folders over {MOST_MODULES}", [f"{name} {count}" for name, count in folders.items() if count > MOST_MODULES]
    )
    show(f"files over {LONG}", [f"{name} {count}" for name, count in lines.items() if count > LONG])
    show("small, 1 importer", [f"{name} {lines[name]}" for name in small])
    show("rooms, no sign", unsigned)
    for service in SERVICES:
        imports = {name: graph.find_modules_directly_imported_by(name) for name in below(graph.modules, service)}
        print(f"levels           {levels(imports):2} in services/{service}")


def sources(directory: str) -> list[Path]:
    """The Python files below a directory of the repository."""
    return sorted((ROOT / directory).rglob("*.py"))


def module_of(path: Path) -> str:
    """`services.core.lease` of services/core/lease.py."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_no_sign(module: str) -> bool:
    """Whether the module is no package's __init__.py, and no entry point."""
    return not (ROOT / module.replace(".", "/")).is_dir() and not module.endswith((".main", ".settings"))


def is_unsigned(path: Path) -> bool:
    """Whether a package does not say in two sentences what is in it, and what is not."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return path.stem == "__init__" and len(docstring) < SMALL


def below(modules: Iterable[str], service: str) -> list[str]:
    """The modules of a service."""
    return [name for name in modules if f"{name}.".startswith(f"services.{service}.")]


def levels(imports: Mapping[str, Iterable[str]]) -> int:
    """The longest chain of imports among these modules; one that is imported in a circle counts once."""

    @cache
    def height(name: str, above: frozenset[str] = frozenset()) -> int:
        inside = [other for other in imports[name] if other in imports and other not in above]
        return 1 + max((height(other, above | {name}) for other in inside), default=0)

    return max((height(name) for name in imports), default=0)


def show(title: str, rows: list[str]) -> None:
    """How many, and each on a line of its own."""
    print(f"{title:16} {len(rows):2}", *sorted(rows), sep="\n                    ")


if __name__ == "__main__":
    main()
