"""Which routes are ours because this program has seen them carry a lease, kept in a file."""

import json
from collections.abc import Collection
from pathlib import Path

from services.cloud.routes import Key, Table
from services.runtime.os.atomic_file import replace_bytes
from services.runtime.telemetry.logs import get_logger

log = get_logger()


class OwnedRoutes:
    """The keys of these routes. `path`: the file; without one they are forgotten when the process ends."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.keys = _read(path)
        self._is_saved = True

    def update(self, needed: Collection[Key], tables: Collection[Table]) -> None:
        """Adds those that leases need, also those about to be written; forgets those gone from their table."""
        there = {route.key for table in tables for route in table.routes}
        names = {table.name for table in tables}
        keys = frozenset(key for key in self.keys if key in there or key[0] not in names).union(needed)
        if keys == self.keys and self._is_saved:
            return
        self.keys = keys
        if self._path is not None:
            was_saved, self._is_saved = self._is_saved, True
            try:
                replace_bytes(self._path, [json.dumps(sorted(keys)).encode()], 0o600)
            except OSError as error:
                self._is_saved = False
                if was_saved:
                    log.warning("cannot remember which routes are ours", path=str(self._path), reason=error.strerror)


def _read(path: Path | None) -> frozenset[Key]:
    """The keys in the file; none if it cannot be read, so that nothing is deleted by mistake."""
    try:
        rows = json.loads(path.read_text()) if path else []
        return frozenset((str(table), str(destination), str(target)) for table, destination, target in rows)
    except FileNotFoundError:
        return frozenset()
    except (OSError, ValueError, TypeError, RecursionError) as error:
        log.error("the file of our routes is not used", path=str(path), reason=str(error))
        return frozenset()
