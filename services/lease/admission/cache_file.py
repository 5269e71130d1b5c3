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

from google.protobuf.message import DecodeError

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import InvalidInput, Unavailable
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Table
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.runtime.cache.kept_file import KeptFile
from flannelette.services.runtime.lease.feed import readable_lease
from flannelette.services.runtime.lease.wire import step_from_proto

_LONGEST: Final = 86_400.0
"""Seconds that a table is worth remembering: as long as flannel's leases live."""
_PAUSE: Final = 1.0
"""Seconds between two writes."""
_SIZE_BYTES: Final = 4
_KIND: Final = "flannelette-lease-table"


class SnapshotCache:
    """One file: the messages of a snapshot, each after its size in four bytes. Best effort.

    A file that is missing, damaged or older than a day counts as empty. The file is replaced as a whole, and never
    before a first complete snapshot.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.file = KeptFile(path, _KIND, older=b"\0", is_synced=False)  # a size below 16 MiB begins so

    def recall(self, served: Mapping[str, Lease]) -> Table:
        """The table that a process before this one has left; without leases if there is none. For the start.

        A lease that is `served` now as well is taken from there: only what is gone has to be decoded.
        """
        table = Table()
        for left in self._path.parent.glob(f".{self._path.name}.*"):  # releases before 0.3 left some for ever
            with suppress(OSError):
                left.unlink()
        try:
            if time.time() - self._path.stat().st_mtime < _LONGEST:
                for message in _messages(self.file.read() or b""):
                    step = pb.WatchLeasesResponse.FromString(message)
                    names = [change.upserted.name for change in step.changes]
                    gone = [c for c in step.changes if c.upserted.name not in served and readable_lease(c.upserted)]
                    del step.changes[:]
                    step.changes.extend(gone)
                    table.fold(step_from_proto(step))
                    table.leases.update((name, served[name]) for name in names if name in served)
        except FileNotFoundError:
            return Table()
        except (OSError, DecodeError, InvalidInput) as error:
            self.file.reject(error)
            return Table()
        return table if table.synced else Table()

    async def keep(self, broker: Broker) -> None:
        """Writes the table whenever it has changed, until the broker is stopped."""
        try:
            with suppress(Unavailable):
                while True:
                    await broker.notifier.next()
                    await asyncio.sleep(_PAUSE)
                    self._write(broker)
        finally:
            self._write(broker)

    def _write(self, broker: Broker) -> None:
        if not broker.table.synced:
            return
        messages = (len(message).to_bytes(_SIZE_BYTES) + message for message in _snapshot(broker))
        self.file.write(messages)


def _snapshot(broker: Broker) -> Iterator[bytes]:
    begun, after = broker.change_log.last, None
    while True:
        part = broker.snapshot(after, begun)
        yield part.body
        if part.ends:
            return
        after = part.last


def _messages(data: bytes) -> Iterator[bytes]:
    """Raises InvalidInput when the file ends too early."""
    position = 0
    while position < len(data):
        start = position + _SIZE_BYTES
        position = start + int.from_bytes(data[position:start])
        if position > len(data):
            raise InvalidInput("the file is truncated")
        yield data[start:position]
