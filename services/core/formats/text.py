r"""Text for people: what is from outside as it may be shown (in a terminal, a log, a picture, an Event), and words in
a sentence.

A name in the store may be anything. What would begin a line, move the cursor, turn the direction of what follows, or
not be seen at all is shown as an escape, such as `\n` or `\u202e`; everything else stays as it is.
"""

import json
import re
from collections.abc import Iterable
from typing import Final

_UNSEEN: Final = "\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef"
"""Characters that Python calls printable and that leave nothing to see: fillers, blanks, selectors."""
_PERHAPS: Final = re.compile(f"[^ -~]|[{_UNSEEN}]")
_SEEN: Final = re.compile(f"[^{_UNSEEN}]")
_LINE_ENDS: Final = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029\t"
_HIDDEN: Final = {ord(each): 0xF0000 + ord(each) for each in _LINE_ENDS}
_SHOWN: Final = {hidden: shown for shown, hidden in _HIDDEN.items()}


def is_visible(character: str) -> bool:
    """Whether the character may be shown as it is; a blank may, the end of a line may not."""
    return character.isprintable() and _SEEN.match(character) is not None


def visible(text: str, *, keeps: str = "") -> str:
    """The text, on one line, with escapes for what is not visible; `keeps`: characters that stay all the same."""
    return _PERHAPS.sub(lambda found: found[0] if found[0] in keeps else escape(found[0]), text)


def escape(character: str) -> str:
    """The character, or the escape that is shown for it."""
    if is_visible(character):
        return character
    return json.dumps(show_line_ends(character))[1:-1]


def hide_line_ends(text: str) -> str:
    """The text on one line: each end of a line, and tab, is another character, which is shown as its escape.

    So that text can be laid out before it is escaped. `show_line_ends` is the inverse.
    """
    return text if text.isprintable() else text.translate(_HIDDEN)


def show_line_ends(text: str) -> str:
    """The text of `hide_line_ends`, as it was."""
    return text if text.isprintable() else text.translate(_SHOWN)


def count(number: int, noun: str) -> str:
    """The number with its noun: `1 lease`, `2,000 leases`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def word_list(words: Iterable[object], last: str = "or") -> str:
    """All of them, with commas and one conjunction."""
    *others, end = map(str, words)
    return f"{', '.join(others)} {last} {end}" if others else end
