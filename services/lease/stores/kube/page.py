"""One page of a list, read an object at a time. Pure.

A page of 500 nodes is 7 MB of JSON, and 36 MB more as Python objects, of which we need 200 bytes a node. So the text
is decoded item by item, and the caller may let others run in between. The standard library's decoder can start
anywhere in a text. orjson cannot; it would save a fifth of the time, and cost those 36 MB and a compiled dependency.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_decode: Final = json.JSONDecoder().raw_decode

ITEMS: Final = "items"


def members(text: str) -> Iterator[tuple[str, Any]]:
    """Each member of the JSON object in `text`, in its order; of `items` each element by itself.

    Raises ValueError where the text breaks: what came before may have come from half a page.
    """
    position = _expect(text, 0, "{")
    if _is(text, position, "}"):
        return
    while True:
        key, position = _decode(text, position)
        position = _expect(text, position, ":")
        if key == ITEMS and _is(text, position, "["):
            position = _expect(text, position, "[")
            while not _is(text, position, "]"):
                element, position = _decode(text, position)
                yield ITEMS, element
                position = _skip(text, position)
                if not _is(text, position, "]"):
                    position = _expect(text, position, ",")
            position += 1
        else:
            value, position = _decode(text, position)
            yield key, value
        position = _skip(text, position)
        if _is(text, position, "}"):
            break
        position = _expect(text, position, ",")
    if _skip(text, position + 1) != len(text):
        raise ValueError("there is something behind the JSON object")


def _skip(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    assert match is not None  # noqa: S101 - it matches nothing, too
    return match.end()


def _is(text: str, position: int, character: str) -> bool:
    return text.startswith(character, position)


def _expect(text: str, position: int, character: str) -> int:
    position = _skip(text, position)
    if not _is(text, position, character):
        raise ValueError(f"expected {character!r} at {position}, which is {text[position : position + 10]!r}")
    return _skip(text, position + 1)
