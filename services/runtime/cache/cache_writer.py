"""Writes the lease table and the own lease to the state file, soon after each change."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from flannelette.services.core.family import Network
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.cache.node_state import records_of
from flannelette.services.runtime.cache.state_file import StateFile
from flannelette.services.runtime.cache.table_records import table_records
from flannelette.services.runtime.state import pack_slowly, sealed

_WRITE_DELAY: Final = 1.0
"""Seconds from a change to the write: changes come in groups."""
_WRITE_INTERVAL: Final = 10.0
"""Least seconds between two writes. Another configuration is not kept waiting: an earlier backend must be known."""
_WRITE_INTERVAL_PER_LEASE: Final = 0.005
"""The same for each lease: a lease takes 5 µs to write, so that writes take at most a thousandth of a core."""
_CONFIRM_INTERVAL: Final = 600.0
"""Seconds between two updates of the file's time while nothing changes."""


RunBlocking: TypeAlias = Callable[..., Awaitable[bool]]
"""Runs a blocking function outside of the event loop."""


class CacheWriter:
    """A task that keeps the state file current. While nothing changes, it only updates the file's time.

    Guarantee: what is written was a complete table at one moment, never one between a reset and its end. The event
    loop is not blocked: leases are encoded in small portions, and a thread waits for the disk.
    """

    def __init__(self, node: str, file: StateFile, run_blocking: RunBlocking = asyncio.to_thread) -> None:
        self._node = node
        self._file = file
        self._run_blocking = run_blocking
        self._table = Table()
        self._networks: Sequence[NetworkConfig] = ()
        self._own: Lease | None = None
        self._previous: Sequence[Network] = ()
        self._is_current = False
        self._written: object = None
        """The version in the file."""
        self._wake = asyncio.Event()
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
        if self._is_due():
            self._wake.set()

    async def run(self) -> None:
        """Runs until it is cancelled, or until the file cannot be used."""
        while self._file.is_usable:
            try:
                async with asyncio.timeout(_CONFIRM_INTERVAL):
                    await self._wake.wait()
            except TimeoutError:
                await self._confirm()
                continue
            await asyncio.sleep(_WRITE_DELAY)
            self._wake.clear()
            self._has_new_networks.clear()
            await self._write()
            interval = max(_WRITE_INTERVAL, _WRITE_INTERVAL_PER_LEASE * len(self._table.leases))
            with suppress(TimeoutError):
                async with asyncio.timeout(interval if self._written else _CONFIRM_INTERVAL):
                    await self._has_new_networks.wait()

    async def close(self) -> None:
        """Writes unwritten changes; for the end of the process, after the job."""
        if self._file.is_usable:
            await self._write()
            await self._confirm()

    def _is_due(self) -> bool:
        return self._table.is_complete and bool(self._networks) and self._written != self._version()

    def _version(self) -> object:
        return self._table.revision, self._networks, self._own, tuple(self._previous)

    async def _confirm(self) -> None:
        is_confirmed = self._is_current and self._written == self._version()
        if is_confirmed and not await self._try(self._file.touch):
            self._written = None
            self._wake.set()

    async def _try(self, function: Callable[..., bool], *arguments: object) -> bool:
        try:
            return await self._run_blocking(function, *arguments)
        except (OSError, RuntimeError) as error:  # for example, no descriptor or thread is left
            self._file.note(f"cannot write {self._file.path} now: {error}")
            return False

    async def _write(self) -> None:
        table, version = self._table, self._version()
        if not self._is_due():
            return
        network, *earlier = self._networks
        own = self._own
        others = [lease for lease in table.leases.values() if own is None or lease.node != self._node]
        leases = table_records(network, others, table.store, table.overrides)
        records = records_of(self._node, own, self._previous, leases, earlier, self._file.machine)
        lines = await pack_slowly(self._file.kind, records)
        is_written = await self._try(self._file.put, sealed(self._file.kind, lines))
        self._written = version if is_written else None
