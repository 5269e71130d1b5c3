"""The file `dataplane.hooks` in --state-dir: the hooks that were put, so that a restart knows which to take back."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from services.core.errors import InvalidInput
from services.core.formats.shell_words import split_words
from services.dataplane.netlink.objects import Hook
from services.runtime.os.atomic_file import replace_bytes
from services.runtime.telemetry.logs import get_logger

log = get_logger()

_MODE: Final = 0o600
_KEYS: Final = ("subject", "put", "delete", "stdin")


class HookFile:
    """The file; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._text = ""

    def read(self) -> list[Hook]:
        """The hooks, each marked as an earlier process's; none if there are none, or not readable ones."""
        if self._path is None:
            return []
        try:
            text = self._path.read_text()
            hooks = [_hook(row) for row in json.loads(text)]
        except FileNotFoundError:
            return []
        except (OSError, ValueError, KeyError, TypeError, RecursionError, InvalidInput) as error:
            log.warning("the hooks of an earlier process are not known", path=str(self._path), reason=str(error))
            return []
        self._text = text
        return hooks

    def write(self, hooks: Iterable[Hook]) -> None:
        """Replaces the file. A failure is logged, and stops nothing."""
        rows = [
            {key: getattr(hook, key) for key in _KEYS} | {"environment": dict(hook.environment)} for hook in hooks
        ]
        text = json.dumps(rows)
        if self._path is None or text == self._text or not (rows or self._text):
            return
        try:
            replace_bytes(self._path, [text.encode()], _MODE)
            self._text = text
        except OSError as error:
            log.warning("the hooks that were put cannot be stored", path=str(self._path), reason=str(error))


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
