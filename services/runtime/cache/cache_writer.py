"""Writes the lease table and the own lease to the state file, soon after each change."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from services.core.family import Network
from services.core.leases.lease import Lease
from services.core.leases.table import Table
from services.core.network import NetworkConfig
from services.runtime.cache.node_state import encode, snapshot_pieces
from services.runtime.cache.state_file import StateFile

_SETTLE: Final = 1.0
"""Seconds from a change until it is written: changes come in groups."""
_REST: Final = 10.0
"""Least seconds between two writes."""
_REST_PER_LEASE: Final = 0.005
"""The same for each lease: writing one costs 5 µs, so that writes take at most a thousandth of a core."""
_CONFIRM: Final = 600.0
"""Seconds between two confirmations that nothing has changed."""


Apart: TypeAlias = Callable[..., Awaitable[bool]]
"""Runs a blocking function outside of the event loop."""


class CacheWriter:
    """A job that keeps the state file current. Without changes it only touches the file every ten minutes.

    Guarantee: what is written was a complete table at one moment, never one between a reset and its end. The event
    loop is not blocked: leases are encoded in small portions, and a thread waits for the disk.
    """

    def __init__(self, node: str, file: StateFile, apart: Apart = asyncio.to_thread) -> None:
        self._node = node
        self._file = file
        self._apart = apart
        self._table = Table()
        self._network: NetworkConfig | None = None
        self._own: Lease | None = None
        self._former: Sequence[Network] = ()
        self._is_current = False
        self._written: object = None
        """The version in the file."""
        self._wake = asyncio.Event()

    def tell(
        self,
        table: Table,
        own: Lease | None,
        former: Sequence[Network],
        *,
        is_current: bool,
        network: NetworkConfig | None = None,
    ) -> None:
        """Takes the present state, and whether the lease service and its store confirm it at this moment.

        `network` is the configuration in force on the node, if that is not the table's.
        """
        self._table, self._own, self._former, self._is_current = table, own, former, is_current
        self._network = network or table.network
        if self._is_due():
            self._wake.set()

    async def run(self) -> None:
        """Runs for ever, or until the file cannot be used."""
        while self._file.is_kept:
            try:
                async with asyncio.timeout(_CONFIRM):
                    await self._wake.wait()
            except TimeoutError:
                await self._confirm()
                continue
            await asyncio.sleep(_SETTLE)
            self._wake.clear()
            await self._write()
            rest = max(_REST, _REST_PER_LEASE * len(self._table.leases))
            await asyncio.sleep(rest if self._written else _CONFIRM)

    async def close(self) -> None:
        """Writes unwritten changes. Call it when the job has ended."""
        if self._file.is_kept:
            await self._write()
            await self._confirm()

    def _is_due(self) -> bool:
        return self._table.is_complete and self._network is not None and self._written != self._version()

    def _version(self) -> object:
        return self._table.revision, self._network, self._own, tuple(self._former)

    async def _confirm(self) -> None:
        is_true = self._is_current and self._written == self._version()
        if is_true and not await self._aside(self._file.touch):
            self._written = None
            self._wake.set()

    async def _aside(self, function: Callable[..., bool], *arguments: object) -> bool:
        try:
            return await self._apart(function, *arguments)
        except (OSError, RuntimeError) as error:  # the process has no file or thread left, say
            self._file.complain(f"nothing can be written now: {error}")
            return False

    async def _write(self) -> None:
        table, network, version = self._table, self._network, self._version()
        if network is None or not self._is_due():
            return
        own, former, parts = self._own, self._former, list[bytes]()
        others = [lease for lease in table.leases.values() if own is None or lease.node != self._node]
        for piece in snapshot_pieces(network, others, table.store, table.overrides):
            parts.append(piece)
            await asyncio.sleep(0)
        data = encode(self._file.service, self._node, own, former, parts)
        is_written = await self._aside(self._file.write, data)
        self._written = version if is_written else None
