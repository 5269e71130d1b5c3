"""What tests do not want in a log is what somebody may write there: an assertion on other words cannot fail."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.paths import ROOT

OTHERS: Final = {"Traceback": "Python", "never retrieved": "asyncio"}
"""Words of programs that are not ours."""
LOGS: Final = ("log", "said(", ".err", "stderr")
"""What is looked into, in parts of its expression."""


def unwanted() -> Iterator[tuple[str, str]]:
    """File and words of each assertion that words are not in a log."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        named = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
            if isinstance(target, ast.Name)
        }
        for node in (test for each in ast.walk(tree) if isinstance(each, ast.Assert) for test in ast.walk(each.test)):
            if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.NotIn):
                words = named.get(node.left.id) if isinstance(node.left, ast.Name) else node.left
                where = ast.get_source_segment(source, node.comparators[0]) or ""
                if isinstance(words, ast.Constant) and any(part in where for part in LOGS):
                    yield path.name, str(words.value)


def test_words_that_are_unwanted_in_a_log_are_said_by_somebody() -> None:
    sources = "\n".join(path.read_text() for path in Path(ROOT / "services").rglob("*.py"))
    texts = " ".join(sources.replace('"', "").split())  # without quotes, as a text may go on in the next line
    found = set(unwanted())  # here, and not for parameters: every process that collects tests would read them all
    assert found
    assert [(file, words) for file, words in found if words not in OTHERS and words not in texts] == []
