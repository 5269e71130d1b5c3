"""The file `dataplane.hooks` in --state-dir: the hooks that were put, so that a restart knows which to take back."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.errors import InvalidInput
from flannelette.services.core.formats.shell_words import split_words
from flannelette.services.dataplane.netlink.objects import Hook
from flannelette.services.runtime.older_state import rows
from flannelette.services.runtime.state import Record, RecordFile, UnreadableState

_KIND: Final = "dataplane.hooks"
_KEYS: Final = ("subject", "put", "delete", "stdin")


class HookFile:
    """The file; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self.file = RecordFile(path, _KIND, older=rows)
        self._records: list[Record] = []

    def read(self) -> list[Hook]:
        """The hooks, each marked as an earlier process's; without those that cannot be read."""
        hooks = []
        for record in self.file.read():
            try:
                hooks.append(_hook(record.json()))
                self._records.append(record)
            except (UnreadableState, ValueError, KeyError, TypeError, InvalidInput) as error:
                self.file.reject(error)
        return hooks

    def write(self, hooks: Iterable[Hook]) -> None:
        """Replaces the file. A failure is logged, and stops nothing."""
        records = [_record(hook) for hook in hooks]
        if records != self._records and self.file.write(records):
            self._records = records


def _record(hook: Hook) -> Record:
    row = {key: getattr(hook, key) for key in _KEYS}
    return Record.of_json(hook.subject, {**row, "environment": dict(hook.environment)})


def _hook(row: dict[str, Any]) -> Hook:
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
