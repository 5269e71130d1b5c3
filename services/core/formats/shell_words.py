"""A command line as words, split as a POSIX shell would, for programs that are run without a shell; and the lines of
`subnet.env`, as any shell that reads it would take them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.frozen import frozen

_NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE: Final = rf"\$(?:\{{({_NAME})\}}|({_NAME}))"
_OUTSIDE: Final = re.compile(
    rf"([ \t]+)|'([^']*)'|(\")|\\(.)|{_VARIABLE}|([^ \t\r\n'\"\\$|&;<>()`]+|\$(?![{{(0-9?$!#@*-]))", re.DOTALL
)
_INSIDE: Final = re.compile(rf"(\")|\\([\"\\$`\n])|{_VARIABLE}|([^\"\\$`]+|\\|\$(?![{{(0-9?$!#@*-]))", re.DOTALL)
"""One piece of a text between double quotes: their end, an escaped character, a variable, or other characters."""


@frozen
class Piece:
    """A part of a word: text as it is, or the name of a variable."""

    text: str
    is_variable: bool = False
    is_quoted: bool = False


Word = tuple[Piece, ...]


def split_words(command: str, where: str) -> tuple[Word, ...]:
    """The words of a command. Raises InvalidInput, naming `where`, for what only a shell can do.

    Quotes and backslashes count as in a shell. `$NAME` and `${NAME}` are variables, but not between single quotes.
    """
    command = command.strip()
    words: list[Word] = []
    word: list[Piece] | None = None
    position, is_inside = 0, False
    while position < len(command):
        found = (_INSIDE if is_inside else _OUTSIDE).match(command, position)
        if found is None:
            raise InvalidInput(_needs_shell(command, position, where))
        position = found.end()
        if is_inside:
            quote, escaped, braced, name, text = found.groups()
            blank, single = None, None
        else:
            blank, single, quote, escaped, braced, name, text = found.groups()
        if blank is not None:
            if word is not None:
                words.append(tuple(word))
            word = None
            continue
        word = [] if word is None else word
        if quote is not None:
            is_inside = not is_inside
            word.append(Piece("", is_quoted=True))
        elif braced or name:
            word.append(Piece(braced or name, is_variable=True, is_quoted=is_inside))
        else:
            kept = single if single is not None else text if text is not None else escaped.replace("\n", "")
            word.append(Piece(kept, is_quoted=text is None))
    if is_inside:
        raise InvalidInput(_needs_shell(command, len(command), where))
    if word is not None:
        words.append(tuple(word))
    if words and words[0][0].text.partition("=")[1] and not words[0][0].is_quoted:
        raise InvalidInput(f"{where} begins with an assignment, which needs a shell: write sh -c '...'")
    return tuple(words)


def expand_words(words: Iterable[Word], variables: Mapping[str, str]) -> list[str]:
    """The words with the values of their variables; a value never becomes several words.

    A variable that is not set is empty. A word without quotes in which nothing is left is left out, as in a shell.
    """
    found = []
    for word in words:
        text = "".join(variables.get(piece.text, "") if piece.is_variable else piece.text for piece in word)
        if text or any(piece.is_quoted for piece in word):
            found.append(text)
    return found


def _needs_shell(command: str, position: int, where: str) -> str:
    if position >= len(command) or command[position] in "'\"":
        return f"{where} has a quote that does not end"
    if command[position] == "\\":
        return f"{where} ends in a backslash"
    sign = command[position : position + 2].strip() if command[position] in "$&|" else command[position]
    sign = "a line break" if sign in "\r\n" else sign
    return f"{where} has {sign} outside of single quotes, which needs a shell: write sh -c '...', or quote it"


def read_lines(text: str) -> dict[str, str]:
    """The values by name, the last one where there are several; lines that are no assignment are passed over.

    Quotes around a value do not matter.
    """
    pairs = (line.strip().partition("=")[::2] for line in text.splitlines() if "=" in line)
    return {name: value.strip().strip("'\"") for name, value in pairs}
