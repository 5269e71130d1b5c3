"""Words in a sentence: `a, b or c`. Pure."""

from collections.abc import Iterable


def word_list(words: Iterable[object], last: str = "or") -> str:
    """All of them, with commas and one conjunction."""
    *others, end = map(str, words)
    return f"{', '.join(others)} {last} {end}" if others else end
