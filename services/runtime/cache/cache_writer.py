"""Writes the lease table and the own lease to the state file, soon after each change."""

import asyncio
from collections.abc import Sequence
from typing import Final

from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.cache.node_state import records_of
from flannelette.services.runtime.cache.state_file import StateFile
from flannelette.services.runtime.cache.table_records import table_records
from flannelette.services.runtime.state import keep

_WRITE_INTERVAL: Final = 10.0
"""Least seconds between two writes. Another configuration is not kept waiting: an earlier backend must be known."""
_WRITE_INTERVAL_PER_LEASE: Final = 0.005
"""The same for each lease: a lease takes 5 µs to write, so that writes take at most a thousandth of a core."""
_CONFIRM_INTERVAL: Final = 600.0
"""Seconds between two updates of the file's time while nothing changes."""


class CacheWriter:
    """A task that keeps the state file current. While nothing changes, it only updates the file's time.

    Guarantee: what is written was a complete table at one moment, never one between a reset and its end. The event
    loop is not blocked: leases are encoded in small portions, and a thread waits for the disk.
    """

    def __init__(self, node: str, file: StateFile) -> None:
        self._node = node
        self._file = file
        self._table = Table()
        self._networks: Sequence[NetworkConfig] = ()
        self._own: Lease | None = None
        self._previous: Sequence[Network] = ()
        self._is_current = False
        self._written: object = None
        """The version in the file."""
        self._has_news = asyncio.Event()
        self._has_new_networks = asyncio.Event()

    def update(
        self,
        table: Table,
        own: Lease | None,
        previous: Sequence[Network],
        *,
        is_current: bool,
        networks: Sequence[NetworkConfig] = (),
    ) -> None:
        """Sets the state to be written. `is_current`: the lease service and its store are connected.

        `networks` are the configuration in force on the node, if it may differ from the table's, and earlier ones
        whose backends some peer still has.
        """
        self._table, self._own, self._previous, self._is_current = table, own, previous, is_current
        before = self._networks
        self._networks = tuple(networks) or ((table.network,) if table.network is not None else ())
        if self._networks != before:
            self._has_new_networks.set()
        if self._is_complete and self._written != self._version():
            self._has_news.set()

    async def run(self) -> None:
        """Writes changes until it is cancelled; nothing if the file cannot be used."""
        await keep(
            self._has_news.wait,
            self.write,
            pause=lambda: max(_WRITE_INTERVAL, _WRITE_INTERVAL_PER_LEASE * len(self._table.leases)),
            retry=_CONFIRM_INTERVAL,
            every=_CONFIRM_INTERVAL,
            urgent=self._has_new_networks,
        )

    async def write(self) -> bool:
        """Writes unwritten changes, or confirms that there are none. Call it at the end of the process too."""
        self._has_news.clear()
        table, version = self._table, self._version()
        if not (self._file.is_usable and self._is_complete):
            return True
        if self._written == version and (not self._is_current or await self._file.confirm()):
            return True
        network, *earlier = self._networks
        own = self._own
        others = [lease for lease in table.leases.values() if own is None or lease.node != self._node]
        leases = table_records(network, others, table.store, table.overrides)
        records = records_of(self._node, own, self._previous, leases, earlier, self._file.machine)
        is_written = await self._file.write_slowly(records)
        self._written = version if is_written else None
        return is_written

    @property
    def _is_complete(self) -> bool:
        return self._table.is_complete and bool(self._networks)

    def _version(self) -> object:
        return self._table.revision, self._networks, self._own, tuple(self._previous)
