"""The lease table in force: that of the lease service, or until it sends one, the table cached before a restart."""

from datetime import UTC, datetime
from typing import Final

from services.core.leases.lease import Lease
from services.core.leases.table import Table
from services.runtime.cache.node_state import NodeState, UnreadableState
from services.runtime.cache.state_file import StateFile
from services.runtime.telemetry.logs import get_logger

log = get_logger()

PATIENCE: Final = 1.0
"""Seconds that a lease service has to begin a snapshot. One that starts at the same time takes less."""


class CachedTable:
    """The table from the state file. `table` is set while it is in force, and None after the first snapshot."""

    def __init__(self, node: str, file: StateFile) -> None:
        remembered = file.read(node)
        memory = remembered[0] if remembered else None
        self.own = memory.own if memory else None
        """The lease that the node had published."""
        self.former = memory.former if memory else ()
        """Previous subnets of the node, the last one first."""
        self.network = memory.network if memory else None
        """The network configuration that was in force on this node."""
        self.table: Table | None = None
        self.known_at = remembered[1] if remembered else 0.0
        """Unix time at which the table was last confirmed."""
        self._file = file
        self._memory = memory

    @property
    def since(self) -> str:
        """The age of the table, and why it is in force, for people."""
        when = datetime.fromtimestamp(self.known_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{when}: no lease service has sent any since the start"

    def choose(self, told: Table, *, is_away: bool) -> Table | None:
        """The table in force; None if there is none yet. `is_away`: no snapshot is expected soon."""
        if told.synced and told.network is not None:
            self._memory, self.table = None, None
            return told
        if self.table is None and self._memory is not None and is_away:
            self.table, self._memory = self._open(self._memory), None
        return self.table

    def _open(self, memory: NodeState) -> Table | None:
        try:
            table = memory.table()
        except UnreadableState as error:
            self._file.refuse(error)
            return None
        log.warning(
            "the remembered leases are in force until a lease service sends its table", leases=len(table.leases)
        )
        return table


def expiry_doubt(lease: Lease, known_at: float, now: float) -> str:
    """Why a lease from before a restart may belong to another node by now; empty: it is still ours."""
    if lease.expires_at is None:
        return ""  # a reservation, or the store gives it out by name, as Kubernetes does
    if now < known_at:
        return "the clock is behind the time at which it was last seen"
    return "it has run out" if now >= lease.expires_at else ""
