"""The command line reads codes and arguments of conditions; it never takes their texts apart."""

import ast
from collections.abc import Iterator

from tests.paths import ROOT

_TEXTS = frozenset(("problem", "cause", "remark", "remarks", "reason", "reasons", "findings", "evidence"))
_FIELDS = frozenset(("text", "actual", "what", "explanation"))
"""Fields of answers, in the notation of a tool or in words; such names alone are anything."""
_METHODS = frozenset(
    (
        *("partition", "rpartition", "split", "rsplit", "startswith", "endswith", "removeprefix", "removesuffix"),
        *("search", "match", "fullmatch", "findall", "finditer", "sub", "find", "index", "replace"),
    )
)


def words(node: ast.AST) -> set[str]:
    names = {each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute)}
    found = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} & _TEXTS
    return found | (names & (_TEXTS | _FIELDS))


def readings(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS:
            if words(node.func.value) or any(map(words, node.args)):
                yield node.lineno
        elif isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant | ast.JoinedStr):
            is_in = any(isinstance(each, ast.In | ast.NotIn) for each in node.ops)
            if is_in and words(node.comparators[0]):
                yield node.lineno


def test_texts_of_conditions_are_shown_and_never_matched_or_split() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sorted((ROOT / "services" / "ctl").rglob("*.py"))
        for number in readings(ast.parse(path.read_text()))
    ]
    assert not found


def test_what_takes_a_text_apart_is_found() -> None:
    code = """
each.problem.partition("; cure: ")
_START.sub("", remark)
"forwarding is broken" in node.reasons
any(each.reason.startswith("x") for each in found)
_ROUTE.match(each.text)
f" dev {interface} " in f"{each.text} "
each.actual.split()[2]
text.removeprefix("unix:")
"""
    assert sorted(readings(ast.parse(code))) == [2, 3, 4, 5, 6, 7, 8]
