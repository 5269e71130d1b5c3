"""Keeps in a file which routes are ours, because this program has seen them carry a lease."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from flannelette.services.cloud.routes import Key, Table
from flannelette.services.runtime.older_state import rows
from flannelette.services.runtime.state import Record, RecordFile, UnreadableState

_KIND: Final = "cloud.routes"


class OwnedRoutes:
    """The keys of these routes. `path`: the file; without one they are forgotten when the process ends."""

    def __init__(self, path: Path | None) -> None:
        self.file = RecordFile(path, _KIND, older=rows)
        self.keys = frozenset(_read(self.file))
        self._is_saved = self.file.is_whole

    def update(self, needed: Collection[Key], tables: Collection[Table]) -> None:
        """Adds those that leases need, also those about to be written; forgets those gone from their table."""
        there = {route.key for table in tables for route in table.routes}
        names = {table.name for table in tables}
        keys = frozenset(key for key in self.keys if key in there or key[0] not in names).union(needed)
        if keys == self.keys and self._is_saved:
            return
        self.keys = keys
        self._is_saved = self.file.write(Record.of_json("/".join(key), key) for key in sorted(keys))


def _read(file: RecordFile) -> Iterator[Key]:
    """The keys in the file; without those that cannot be read, so that nothing is deleted by mistake."""
    for record in file.read():
        try:
            table, destination, target = record.json()
            yield str(table), str(destination), str(target)
        except (UnreadableState, ValueError, TypeError) as error:
            file.reject(error)
