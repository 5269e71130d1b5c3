"""Checks docstrings, for `make lint`: each begins with a noun or a verb, and has more than three words.

python -m tests.docstrings FILE_OR_FOLDER...   prints `file:line: rule: docstring` of each violation, and exits with 1

One rule for all of them: of modules, classes and functions, and below attributes.
"""

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from tests.paths import ROOT

PREPOSITIONS: Final = frozenset(
    """about above across after against along among around as at before behind below beneath beside besides between
    beyond but by concerning despite down during except for from in inside into like near of off on onto out outside
    over per since than through throughout till to toward towards under underneath until unto up upon via with within
    without""".split()
)
PRONOUNS: Final = frozenset(
    """he her hers herself him himself his i it its itself me mine my our ours ourselves she such that their theirs
    them themselves these they this those us we which who whom whose you your yours anybody anyone anything everybody
    everyone everything nobody nothing somebody someone something""".split()
)
"""But `one`, `all`, `each`, `no` and their like before a noun, and `what`, which begins a clause that is a noun."""
LEAST_WORDS: Final = 4
_REFERENCE: Final = re.compile(r"See (the )?`?[\w.]+`?\.")
"""The docstring of a method that a protocol or a base class describes."""
_WORD: Final = re.compile(r"\S*\w\S*")


class Docstring(NamedTuple):
    """A docstring, and where it is."""

    path: Path
    line: int
    text: str


def main() -> int:
    """The exit code: 1 for violations, which are printed."""
    given = [ROOT / name for name in sys.argv[1:]]
    paths = [path for each in given for path in (sorted(each.rglob("*.py")) if each.is_dir() else [each])]
    found = [line for path in paths for line in violations(docstrings(path))]
    print(*found, sep="\n", end="\n" if found else "")
    return bool(found)


def violations(given: Iterable[Docstring]) -> Iterator[str]:
    """Each violation as a line that names file, line and rule."""
    for path, line, text in given:
        if rule := broken_rule(text):
            yield f"{path.relative_to(ROOT)}:{line}: a docstring {rule}: {text.partition(chr(10))[0]!r}"


def broken_rule(text: str) -> str:
    """The rule that a docstring breaks, or nothing."""
    words = _WORD.findall(text)
    first = re.split(r"[^a-z]", words[0].lower())[0] if words else ""
    if first in PREPOSITIONS:
        return f"begins with a noun or a verb, not with the preposition {first}"
    if first in PRONOUNS:
        return f"begins with a noun or a verb, not with the pronoun {first}"
    return "" if len(words) >= LEAST_WORDS or _REFERENCE.fullmatch(text) else "has more than three words"


def docstrings(path: Path) -> Iterator[Docstring]:
    """The docstrings of a file: each statement that is a text, also below an attribute."""
    for node in ast.walk(ast.parse(path.read_text())):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield Docstring(path, value.lineno, value.value)


if __name__ == "__main__":
    sys.exit(main())
