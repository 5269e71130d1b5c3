"""JSON objects as Go's encoding/json reads them into a struct, which is how flannel reads all of its own."""

import json
import re
from collections.abc import Iterator, Sequence, Set
from typing import Any, Final

from flannelette.services.core.errors import InvalidInput

_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_MEMBER: Final = re.compile(rf"[{{, \t\n\r]*({_STRING})[ \t\n\r]*:[ \t\n\r]*")
_BLANK: Final = re.compile(rf"({_STRING})|[ \t\n\r]+")
_WHOLE: Final = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class GoObject:
    """A JSON object whose keys match without regard to case; the last of several wins.

    Null is absent, and an earlier value of the same key stays (Go leaves the field alone); only `object` and
    `compact` see it, as Go's RawMessage does. Every answer and every message can be encoded as UTF-8. Each
    getter raises InvalidInput, naming the key, when the value has another type than asked for.
    """

    __slots__ = ("_names", "_raw", "_values", "_where")

    def __init__(self, members: Iterator[tuple[str, Any, str]], where: str) -> None:
        self._where = where
        self._values: dict[str, tuple[Any, str]] = {}
        self._raw: dict[str, str] = {}
        self._names: list[str] = []
        for name, value, raw in members:
            key = name.casefold()
            self._names.append(_LONE_SURROGATE.sub("\ufffd", name))
            self._raw[key] = raw
            if value is not None:
                self._values[key] = value, raw

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> "GoObject":
        """The object in `text`. Raises InvalidInput, naming `where`, if it is none."""
        if isinstance(text, bytes):
            text = text.decode(errors="replace")  # as Go does
        if text.startswith("\ufeff"):
            raise InvalidInput(
                f"{where} is not valid JSON: it begins with a byte order mark (U+FEFF): save it as UTF-8 without BOM"
            )
        try:
            if not isinstance(_decoder.decode(text), dict):
                raise InvalidInput(f"{where} must be a JSON object, not {_shown(text)}")
            return cls(_members(text), where)
        except ValueError as error:
            raise InvalidInput(f"{where} is not valid JSON: {error}") from None
        except RecursionError:
            raise InvalidInput(f"{where} is nested too deeply") from None

    def text(self, key: str, default: str = "") -> str:
        """A string; half a surrogate pair in it is U+FFFD, as in Go."""
        value: str = self._get(key, str, "a string", default)
        return _LONE_SURROGATE.sub("\ufffd", value)

    def secret(self, key: str) -> str:
        """A string that no error shows, empty when absent."""
        value, _ = self._values.get(key.casefold(), ("", ""))
        if not isinstance(value, str):
            raise InvalidInput(f"{key} in {self._where} must be a string")
        return _LONE_SURROGATE.sub("\ufffd", value)

    def texts(self, key: str) -> Sequence[str]:
        """The strings of an array; none when absent."""
        what = "an array of strings"
        values: list[Any] = self._get(key, list, what, [])
        if not all(isinstance(each, str) for each in values):
            raise InvalidInput(f"{key} in {self._where} must be {what}, not {_shown(self._raw[key.casefold()])}")
        return [_LONE_SURROGATE.sub("\ufffd", each) for each in values]

    def flag(self, key: str, default: bool = False) -> bool:
        """Reads a boolean; the default, if the object lacks the key."""
        value: bool = self._get(key, bool, "true or false", default)
        return value

    def number(self, key: str, default: int = 0, *, most: int = 2**64 - 1) -> int:
        """A whole number up to `most`, written without point and exponent."""
        _, raw = self._values.get(key.casefold(), (None, None))
        if raw is None:
            return default
        if not _WHOLE.fullmatch(raw) or not 0 <= int(raw) <= most:
            raise InvalidInput(f"{key} in {self._where} must be a whole number from 0 to {most}, not {_shown(raw)}")
        return int(raw)

    def object(self, key: str) -> "GoObject | None":
        """An object, None when absent; null is an empty one."""
        raw = self._raw.get(key.casefold())
        return None if raw is None else GoObject.parse("{}" if raw == "null" else raw, f"{key} in {self._where}")

    def compact(self, key: str) -> str | None:
        """Any value, also `null`, as JSON text in its original spelling without blanks; None when absent."""
        raw = self._raw.get(key.casefold())
        return None if raw is None else _without_blanks(raw)

    def names(self) -> Sequence[str]:
        """The keys as they are written."""
        return self._names

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return key.casefold() in self._values

    def _get(self, key: str, kind: type, what: str, default: Any) -> Any:
        value, raw = self._values.get(key.casefold(), (default, ""))
        if not isinstance(value, kind):
            raise InvalidInput(f"{key} in {self._where} must be {what}, not {_shown(raw)}")
        return value


def without_secrets(text: str, keys: Set[str]) -> str:
    """JSON text, with `(hidden)` as the value of each member that has one of these keys (folded)."""
    found: list[str] = []

    def shown(members: list[tuple[str, Any]]) -> dict[str, Any]:
        found.extend(key for key, _ in members if key.casefold() in keys)
        return {key: "(hidden)" if key.casefold() in keys else value for key, value in members}

    try:
        document = json.loads(text, object_pairs_hook=shown)
    except (ValueError, RecursionError):
        return "(hidden)"
    return json.dumps(document) if found else text


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not a JSON value")


# `number` reads the text itself: Python's int refuses more than 4,300 digits, and Go ignores unused fields.
_decoder: Final = json.JSONDecoder(parse_int=float, parse_constant=_refuse)


def _members(text: str) -> Iterator[tuple[str, Any, str]]:
    """Key, value, and text of the value of each member of an object that is known to be valid."""
    position = 0
    while member := _MEMBER.match(text, position):
        value, position = _decoder.raw_decode(text, member.end())
        key = member[1][1:-1] if "\\" not in member[1] else _decoder.decode(member[1])
        yield key, value, text[member.end() : position]


def _without_blanks(raw: str) -> str:
    return _BLANK.sub(lambda found: found[1] or "", raw)


def _shown(raw: str) -> str:
    """A value for people; one that may have keys and passwords in it, by its kind."""
    text = _without_blanks(raw)
    if text.startswith(("[", "{")) and len(text) > len("[]"):
        return "a list" if text[0] == "[" else "an object"
    if "\\" in text:
        return "a string"
    return text if len(text) <= 60 else f"{text[:57]}..."
