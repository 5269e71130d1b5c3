"""Keeps in a file which routes are ours, because this program has seen them carry a lease."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Final

from flannelette.services.cloud.routes import Key, Table
from flannelette.services.runtime.cache.kept_file import KeptFile

_KIND: Final = "flannelette-cloud-routes"


class OwnedRoutes:
    """The keys of these routes. `path`: the file; without one they are forgotten when the process ends."""

    def __init__(self, path: Path | None) -> None:
        self.file = KeptFile(path, _KIND, older=b"[")
        self.keys = _read(self.file)
        self._is_saved = True

    def update(self, needed: Collection[Key], tables: Collection[Table]) -> None:
        """Adds those that leases need, also those about to be written; forgets those gone from their table."""
        there = {route.key for table in tables for route in table.routes}
        names = {table.name for table in tables}
        keys = frozenset(key for key in self.keys if key in there or key[0] not in names).union(needed)
        if keys == self.keys and self._is_saved:
            return
        self.keys = keys
        self._is_saved = self.file.write([json.dumps(sorted(keys)).encode()])


def _read(file: KeptFile) -> frozenset[Key]:
    """The keys in the file; none if it cannot be read, so that nothing is deleted by mistake."""
    try:
        rows = json.loads(file.read() or b"[]")
        return frozenset((str(table), str(destination), str(target)) for table, destination, target in rows)
    except (ValueError, TypeError, RecursionError) as error:
        file.reject(error)
        return frozenset()
