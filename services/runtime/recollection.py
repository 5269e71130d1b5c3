"""Which table is in force: the lease service's, or until it has one for us, that of before a restart."""

from datetime import UTC, datetime
from typing import Final

from services.core.lease import Lease
from services.core.table import Table
from services.runtime.logs import get_logger
from services.runtime.memory import Memory, Refused
from services.runtime.state_file import StateFile

log = get_logger()

PATIENCE: Final = 1.0
"""Seconds that a lease service has to begin a snapshot. One that starts beside us takes less."""


class Recollection:
    """`table` is what is remembered, while that is in force; from the first snapshot on it never is again."""

    def __init__(self, node: str, file: StateFile) -> None:
        remembered = file.read(node)
        memory = remembered[0] if remembered else None
        self.own = memory.own if memory else None
        """The lease that peers knew of us."""
        self.former = memory.former if memory else ()
        """Subnets that had been our own, the last one first."""
        self.network = memory.network if memory else None
        """The configuration that this node went by."""
        self.table: Table | None = None
        self.known_at = remembered[1] if remembered else 0.0
        """Unix time at which it was last known to be true."""
        self._file = file
        self._memory = memory

    @property
    def since(self) -> str:
        """Of when it is, and why it is in force nevertheless."""
        when = datetime.fromtimestamp(self.known_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{when}: no lease service has told any since the start"

    def choose(self, told: Table, *, is_away: bool) -> Table | None:
        """The table in force; None: none yet. `is_away`: there will be no snapshot soon."""
        if told.synced and told.network is not None:
            self._memory, self.table = None, None
            return told
        if self.table is None and self._memory is not None and is_away:
            self.table, self._memory = self._open(self._memory), None
        return self.table

    def _open(self, memory: Memory) -> Table | None:
        try:
            table = memory.table()
        except Refused as error:
            self._file.refuse(error)
            return None
        log.warning("the leases of before are in force until a lease service tells some", leases=len(table.leases))
        return table


def doubt(lease: Lease, known_at: float, now: float) -> str:
    """Why a lease of before a restart may be somebody else's by now; empty: it is still ours."""
    if lease.expires_at is None:
        return ""  # a reservation, or the store gives it out by name, as Kubernetes does
    if now < known_at:
        return "the clock is behind the time at which it was last seen"
    return "it has run out" if now >= lease.expires_at else ""
