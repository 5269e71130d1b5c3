"""JSON objects as Go's encoding/json reads them into a struct, which is how flannel reads all of its own."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from services.core.errors import InvalidInput


class GoObject:
    """A JSON object whose keys match without regard to case; the last of several wins, null is absent.

    Each getter raises InvalidInput, naming the key, when the value has another type than asked for.
    """

    __slots__ = ("_values", "_where")

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    @classmethod
    def parse(cls, text: str | bytes, where: str) -> "GoObject":
        """The object in `text`. Raises InvalidInput, naming `where`, if it is none."""
        try:
            value = json.loads(text, object_pairs_hook=_fold)
        except ValueError as error:
            raise InvalidInput(f"{where} is not valid JSON: {error}") from None
        except RecursionError:
            raise InvalidInput(f"{where} is nested too deeply") from None
        if not isinstance(value, _Folded):
            raise InvalidInput(f"{where} must be a JSON object, not {_shown(value)}")
        return cls(value.folded, where)

    def text(self, key: str, default: str = "") -> str:
        """A string."""
        value: str = self._get(key, str, "a string", default)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """A boolean."""
        value: bool = self._get(key, bool, "true or false", default)
        return value

    def number(self, key: str, default: int = 0, *, least: int = 0, most: int = 2**64 - 1) -> int:
        """A whole number from `least` to `most`."""
        value = self._values.get(key.lower())
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise InvalidInput(
                f"{key} in {self._where} must be a whole number from {least} to {most}, not {_shown(value)}"
            )
        return value

    def object(self, key: str) -> "GoObject | None":
        """An object, None when absent."""
        value = self._get(key, _Folded, "an object", None)
        return None if value is None else GoObject(value.folded, f"{key} in {self._where}")

    def compact(self, key: str) -> str | None:
        """Any value, as compact JSON text in its original spelling; None when absent."""
        value = self._values.get(key.lower())
        return None if value is None else json.dumps(_unfold(value), separators=(",", ":"), ensure_ascii=False)

    def has(self, key: str) -> bool:
        """Whether the key is there and not null."""
        return self._values.get(key.lower()) is not None

    def _get(self, key: str, kind: type, what: str, default: Any) -> Any:
        value = self._values.get(key.lower())
        if value is None:
            return default
        if not isinstance(value, kind):
            raise InvalidInput(f"{key} in {self._where} must be {what}, not {_shown(value)}")
        return value


class _Folded:
    """An object, with its pairs as written and by lower-case key."""

    __slots__ = ("folded", "pairs")

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.pairs = pairs
        # Go leaves a field alone when it meets null, so an earlier value of the same key stays.
        self.folded = MappingProxyType({key.lower(): value for key, value in pairs if value is not None})


def _fold(pairs: list[tuple[str, Any]]) -> _Folded:
    return _Folded(pairs)


def _unfold(value: Any) -> Any:
    if isinstance(value, _Folded):
        return {key: _unfold(inner) for key, inner in value.pairs}
    if isinstance(value, list):
        return [_unfold(inner) for inner in value]
    return value


def _shown(value: Any) -> str:
    text = json.dumps(_unfold(value), ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."
