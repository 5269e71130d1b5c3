"""The registry of conditions: what is said names what its row needs, and programs never read the text."""

import ast
import string
from collections.abc import Iterator

import pytest

from flannelette.services.core.conditions import BROKEN, ROWS, SOON, WARNING, Condition, found, gravest
from tests.paths import ROOT

_NAMES = ("found", "condition")
"""The function, as it is imported."""
_OPTIONS = frozenset(("cure", "evidence", "weight", "peers", "is_general", "is_remote", "is_part"))


def names(*sentences: str) -> set[str]:
    return {name for each in sentences for _, name, *_ in string.Formatter().parse(each) if name}


def codes(node: ast.expr, constants: dict[str, list[str]]) -> list[str]:
    """Every code that an expression may be; a name stands for all that its module assigns to it."""
    if isinstance(node, ast.Constant):
        return [str(node.value)]
    if isinstance(node, ast.IfExp):
        return codes(node.body, constants) + codes(node.orelse, constants)
    if isinstance(node, ast.Name):
        return constants.get(node.id, [])
    return []


def assigned(tree: ast.AST) -> dict[str, list[str]]:
    """The codes that names of a module may stand for; those of a tuple have each of its codes."""
    known = dict[str, list[str]]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                for name in (each for each in names if isinstance(each, ast.Name)):
                    known.setdefault(name.id, []).extend(code for each in values for code in codes(each, {}))
    return known


def calls() -> Iterator[tuple[str, str, set[str]]]:
    """Place, code and arguments of each `found(...)` in services."""
    for path in sorted((ROOT / "services").rglob("*.py")):
        text = path.read_text()
        if "core.conditions import" not in text:
            continue
        tree = ast.parse(text)
        constants = {name: [each for each in of if each in ROWS] for name, of in assigned(tree).items()}
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("found", "condition")
            ):
                given = {each.arg or "**" for each in node.keywords} - _OPTIONS
                for code in codes(node.args[0], constants):
                    yield f"{path.relative_to(ROOT)}:{node.lineno}", code, given


CALLS = list(calls())


def test_each_call_gives_the_arguments_of_its_row() -> None:
    wrong = [
        f"{where}: {code}"
        for where, code, given in CALLS
        if code not in ROWS or given != names(ROWS[code].problem, ROWS[code].cause) - {"peers"}
    ]
    assert len(CALLS) > 60
    assert not wrong


def test_no_row_is_left_that_nothing_says() -> None:
    """What a service lacks to be ready is said with the words of the code: `health.set("lease service", ...)`."""
    texts = "".join(path.read_text() for path in (ROOT / "services").rglob("*.py") if path.name != "conditions.py")
    unready = {code: code.removeprefix("unready.").replace("-", " ") for code in ROWS if code.startswith("unready.")}
    del unready["unready.service"]  # the name of another process
    texts = texts.replace('"CNI configuration"', '"cni configuration"')
    assert not [code for code in ROWS if f'"{unready.get(code, code)}"' not in texts and code != "unready.service"]


def test_codes_are_words_and_rows_are_sentences() -> None:
    for code, row in ROWS.items():
        assert code == row.code
        assert all(part and part.replace("-", "").isalnum() and part.islower() for part in code.split(".")), code
        assert names(row.problem, row.cause).isdisjoint(_OPTIONS - {"peers"}), code


def test_an_argument_with_braces_is_no_template() -> None:
    condition = found("host.own-part", part="{peers}", why="{nothing}")
    assert condition.problem == "Packets to {peers}, a part of the subnet of this node, do not reach its pods."
    assert condition.cause == "{nothing}"


def test_what_another_release_says_is_shown_as_it_is() -> None:
    condition = Condition("unheard.of", told=("new-check", "Something {new} is wrong.", "A cause."), weight=WARNING)
    assert (condition.check, condition.problem, condition.cause) == (
        "new-check",
        "Something {new} is wrong.",
        "A cause.",
    )
    assert condition.bounded().problem == condition.problem


@pytest.mark.parametrize("count", [1, 4])
def test_peers_are_named(count: int) -> None:
    peers = tuple((f"10.5.{i}.0-24", f"n{i}") for i in range(count))
    said = {1: "n0", 4: "n0, n1, n2 and 1 more"}[count]
    condition = found("peer.down", peers=peers)
    assert condition.problem == f"No answer comes from {said}, neither through the overlay nor in the underlay."


@pytest.mark.parametrize("code", ["peer.route", "peer.route-host", "peer.return", "underlay.route"])
def test_what_a_lookup_of_a_peer_says_needs_the_rule_or_route_only(code: str) -> None:
    assert names(ROWS[code].problem, ROWS[code].cause) == {"peers", "why"}


def test_the_gravest_come_first_and_those_of_one_weight_as_they_were_found() -> None:
    weights = {"d": WARNING, "b": SOON, "a": BROKEN, "c": SOON, "e": BROKEN}
    told = [Condition(name, weight=weight) for name, weight in weights.items()]
    assert [each.code for each in gravest(told)] == ["a", "e", "b", "c", "d"]


def test_arguments_given_in_any_order_are_one_condition() -> None:
    assert found("host.own-part", why="a", part="b") == found("host.own-part", part="b", why="a")
    assert found("host.own-part", why="a", part="b").arguments == (("part", "b"), ("why", "a"))


def test_a_condition_weighs_what_its_row_says_unless_another_weight_is_given() -> None:
    row = ROWS["host.own-part"]
    assert row.weight is not WARNING
    assert found(row.code, part="a", why="b").weight is row.weight
    assert found(row.code, part="a", why="b", weight=WARNING).weight is WARNING
