"""The check of docstrings in `make lint`: which it refuses, where, and with what words."""

from pathlib import Path

import pytest

from tests.docstrings import Docstring, broken_rule, docstrings, violations
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("By lease name, the peers.", "begins with a noun or a verb, not with the preposition by"),
        ("Until it's over, waits.", "begins with a noun or a verb, not with the preposition until"),
        ("Those that have failed so far.", "begins with a noun or a verb, not with the pronoun those"),
        ("It's gone, if it was there.", "begins with a noun or a verb, not with the pronoun it"),
        ("Ends open calls.", "has more than three words"),
        ("Removes it - again.", "has more than three words"),
        ("", "has more than three words"),
    ],
)
def test_a_docstring_without_a_subject_breaks_a_rule(text: str, rule: str) -> None:
    assert broken_rule(text) == rule


@pytest.mark.parametrize(
    "text",
    [
        "Closes the connection, which ends open calls.",
        "The peers by lease name.",
        "`flannelette-masq`: starts the process.",
        "One use of a flag.",
        "What happened to a lease.",
        "Forwards packets of pods.",
        "See Store.",
        "See the proto.",
        "See HostState.nft.",
    ],
)
def test_a_docstring_with_a_subject_or_a_reference_passes(text: str) -> None:
    assert broken_rule(text) == ""


SOURCE = '''"""A module for the test."""


class Row:
    """A row of it."""

    name: str
    """Of the row."""

    def close(self) -> None:
        """Ends it."""

        async def inner() -> None:
            """Of the inside, a function."""
'''


def test_docstrings_of_modules_classes_functions_and_attributes_are_found(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(SOURCE)
    found = {each.line: each.text for each in docstrings(path)}
    assert found == {
        1: "A module for the test.",
        5: "A row of it.",
        8: "Of the row.",
        11: "Ends it.",
        14: "Of the inside, a function.",
    }


def test_a_violation_names_file_line_and_rule() -> None:
    found = violations([Docstring(ROOT / "services/core/x.py", 7, "Of a lease, the key.\n\nMore."), *GOOD])
    assert list(found) == [
        "services/core/x.py:7: a docstring begins with a noun or a verb, not with the preposition of: "
        "'Of a lease, the key.'"
    ]


GOOD = [Docstring(ROOT / "services/core/x.py", 1, "Leases and their keys.")]
