"""`make map`: the packages of services/ in docs/architecture.md, each with the first sentence of its docstring."""

import ast
import re
from typing import Final

from tests.paths import ROOT

PAGE: Final = ROOT / "docs" / "architecture.md"
_MAP: Final = re.compile(r"(?<=<!-- map -->\n).*?(?=<!-- end of map -->)", re.S)
_LATER_SENTENCES: Final = re.compile(r"(?<=\.) .*")


def main() -> None:
    """Replaces the map in the page."""
    PAGE.write_text(_MAP.sub(lambda _: map_of_packages(), PAGE.read_text()))


def map_in_page() -> str:
    """The map as the page has it."""
    (found,) = _MAP.findall(PAGE.read_text())
    return str(found)


def map_of_packages() -> str:
    """A table of every package and the first sentence of its docstring."""
    rows = []
    for path in sorted((ROOT / "services").rglob("__init__.py")):
        sign = " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())
        name = str(path.parent.relative_to(ROOT / "services")) if path.parent != ROOT / "services" else "."
        rows.append(f"| `{name}` | {_LATER_SENTENCES.sub('', sign).replace('|', chr(92) + '|')} |\n")
    return "\n| package of services/ | what it contains |\n|---|---|\n" + "".join(rows) + "\n"


if __name__ == "__main__":
    main()
