"""Text from outside, as it may be shown."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flannelette.services.core.formats.text import hide_line_ends, is_visible, show_line_ends, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("h1", "h1"),
        ("Zürich 東京 a b", "Zürich 東京 a b"),
        ("a\nb", r"a\nb"),
        ("a\r\tb", r"a\r\tb"),
        ("\x1b[2J", r"\u001b[2J"),
        ("\u2028\u202e\u200b\u2066\ufeff", r"\u2028\u202e\u200b\u2066\ufeff"),
        ("\x7f\x85\x9b", r"\u007f\u0085\u009b"),
        ("\u3164\ufe0f", r"\u3164\ufe0f"),
        ("\U000e0041", r"\udb40\udc41"),
    ],
)
def test_what_cannot_be_seen_is_an_escape(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(hide_line_ends(text)) == shown


@given(st.text())
def test_any_text_is_one_line_that_can_be_seen(text: str) -> None:
    shown = visible(text)
    assert all(map(is_visible, shown))
    assert len(shown.splitlines()) <= 1


@given(st.text())
def test_hidden_line_ends_come_back(text: str) -> None:
    is_private = any("\U000f0000" <= each <= "\U000fffff" for each in text)
    assert is_private or show_line_ends(hide_line_ends(text)) == text
    assert len(hide_line_ends(text).splitlines()) <= 1


@given(st.text())
def test_json_stays_what_it_was(text: str) -> None:
    is_private = any("\U000f0000" <= each <= "\U000fffff" for each in text)
    assert is_private or json.loads(visible(json.dumps([text], ensure_ascii=False))) == [text]
