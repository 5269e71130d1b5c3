"""The lease table in a file, with which the next process compares the first snapshot of its store.

Without the file, a lease service that is restarted while its store is empty would tell every node that there are no
leases. With it, the mass-removal guard sees what was there before.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Table
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.runtime.cache.table_records import records_of_pieces, table_of
from flannelette.services.runtime.older_state import lease_table
from flannelette.services.runtime.state import RecordFile, keep

_LONGEST: Final = 86_400.0
"""Seconds that a table is worth remembering: as long as flannel's leases live."""
_PAUSE_PER_LEASE: Final = 0.001
"""Least seconds between two writes for each lease, so that writes take a few thousandths of a core."""
_CONFIRM: Final = 3_600.0
"""Seconds from one write to the next one while nothing changes: the table is still worth remembering."""
_KIND: Final = "lease.table"


class SnapshotCache:
    """One file of the records of a table. Best effort.

    A file that is missing, damaged or older than a day counts as empty; without a lease whose record is damaged. The
    file is replaced as a whole, and never before a first complete snapshot.
    """

    def __init__(self, path: Path, broker: Broker) -> None:
        self._path = path
        self._broker = broker
        self._written: object = None
        """The version in the file."""
        self.file = RecordFile(path, _KIND, older=lease_table, is_synced=False)

    def recall(self, served: Mapping[str, Lease]) -> Table:
        """The table that a process before this one has left; without leases if there is none. For the start.

        A lease that is `served` now as well is taken from there: only what is gone has to be decoded.
        """
        with suppress(OSError):
            for left in self._path.parent.glob(f".{self._path.name}.*"):  # releases before 0.3 left some for ever
                left.unlink()
        with suppress(OSError):  # said when the file is read
            if time.time() - self._path.stat().st_mtime >= _LONGEST:
                return Table()
        return table_of(self.file, served)

    async def run(self) -> None:
        """Writes the table whenever it has changed, until the broker is stopped."""
        with suppress(Unavailable):
            await keep(
                self._news,
                self.write,
                pause=lambda: _PAUSE_PER_LEASE * len(self._broker.table.leases),
                every=_CONFIRM,
            )

    async def write(self) -> bool:
        """Writes the table, if it is complete. Call it at the end of the process too."""
        table, version = self._broker.table, self._version()
        records = records_of_pieces(table.network, self._broker.pieces.of_all(), table.store)
        if table.synced and not await self.file.write_slowly(records):
            return False
        self._written = version
        return True

    async def _news(self) -> None:
        while self._written == self._version():
            await self._broker.notifier.next()

    def _version(self) -> object:
        return self._broker.table.revision, self._broker.table.synced
