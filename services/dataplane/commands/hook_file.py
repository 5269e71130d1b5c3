"""The file `dataplane.hooks` in --state-dir: the hooks that were put, so that a restart knows which to take back."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.formats.shell_words import split_words
from flannelette.services.dataplane.netlink.objects import Hook
from flannelette.services.runtime.cache.kept_file import KeptFile

_KIND: Final = "flannelette-dataplane-hooks"
_KEYS: Final = ("subject", "put", "delete", "stdin")


class HookFile:
    """The file; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.file = KeptFile(path, _KIND, older=b"[")
        self._text = b""

    def read(self) -> list[Hook]:
        """The hooks, each marked as an earlier process's; none if there are none, or not readable ones."""
        text = self.file.read()
        if text is None:
            return []
        try:
            hooks = [_hook(row) for row in json.loads(text)]
        except (ValueError, KeyError, TypeError, RecursionError, InvalidInput) as error:
            self.file.reject(error)
            return []
        self._text = text
        return hooks

    def write(self, hooks: Iterable[Hook]) -> None:
        """Replaces the file. A failure is logged, and stops nothing."""
        rows = [
            {key: getattr(hook, key) for key in _KEYS} | {"environment": dict(hook.environment)} for hook in hooks
        ]
        text = json.dumps(rows).encode()
        if text != self._text and (rows or self._text) and self.file.write([text]):
            self._text = text


def _hook(row: dict[str, object]) -> Hook:
    """Raises KeyError, TypeError, ValueError, InvalidInput for what is none."""
    texts = [row[key] for key in _KEYS]
    environment = row["environment"]
    if not isinstance(environment, dict):
        raise TypeError("environment")
    subject, put, delete, stdin = map(_text, texts)
    for command in (put, delete):
        split_words(command, "a command")
    pairs = tuple((_text(key), _text(value)) for key, value in environment.items())
    return Hook(subject, put, delete, pairs, stdin, is_earlier=True)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()  # half of a surrogate pair, which JSON may have and no message
    return value
