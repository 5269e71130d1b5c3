"""The lease table in a file, with which the next process compares the first snapshot of its store.

Without the file, a lease service that is restarted while its store is empty would tell every node that there are no
leases. With it, the mass-removal guard sees what was there before.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from flannelette.services.core.errors import Unavailable
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Table
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.runtime.cache.table_records import records_of_pieces, table_in
from flannelette.services.runtime.older_state import lease_table
from flannelette.services.runtime.state import Named, RecordFile, UnreadableState, pack_slowly, sealed

_LONGEST: Final = 86_400.0
"""Seconds that a table is worth remembering: as long as flannel's leases live."""
_PAUSE: Final = 1.0
"""Least seconds between two writes."""
_PAUSE_PER_LEASE: Final = 0.001
"""The same for each lease, so that writes take a few thousandths of a core."""
_RETRY: Final = 60.0
"""Seconds from a write that has failed to the next one, if nothing changes."""
_KIND: Final = "lease.table"


class SnapshotCache:
    """One file of the records of a table. Best effort.

    A file that is missing, damaged or older than a day counts as empty; without a lease whose record is damaged. The
    file is replaced as a whole, and never before a first complete snapshot.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file = RecordFile(path, _KIND, older=lease_table, is_synced=False)

    def recall(self, served: Mapping[str, Lease]) -> Table:
        """The table that a process before this one has left; without leases if there is none. For the start.

        A lease that is `served` now as well is taken from there: only what is gone has to be decoded.
        """
        for left in self._path.parent.glob(f".{self._path.name}.*"):  # releases before 0.3 left some for ever
            with suppress(OSError):
                left.unlink()
        try:
            if time.time() - self._path.stat().st_mtime < _LONGEST:
                return table_in(self.file.read(), served)
        except FileNotFoundError:
            pass
        except (OSError, UnreadableState) as error:
            self.file.reject(error)
        return Table()

    async def keep(self, broker: Broker) -> None:
        """Writes the table whenever it has changed, until the broker is stopped."""
        table = broker.table
        try:
            with suppress(Unavailable):
                await broker.notifier.next()
                while True:
                    await asyncio.sleep(_PAUSE)
                    written, is_kept = (table.revision, table.synced), True
                    if table.synced:
                        is_kept = self.file.put(sealed(_KIND, await pack_slowly(_KIND, _records(broker))))
                    await asyncio.sleep(_PAUSE_PER_LEASE * len(table.leases))
                    if written == (table.revision, table.synced):  # else there is something new to write already
                        with suppress(TimeoutError):
                            async with asyncio.timeout(None if is_kept else _RETRY):
                                await broker.notifier.next()
        finally:
            if table.synced:
                self.file.write(_records(broker))


def _records(broker: Broker) -> Iterator[Named]:
    return records_of_pieces(broker.table.network, broker.pieces.of_all(), broker.table.store)
