"""The lease table in force: that of the lease service, or until it sends one, the table cached before a restart."""

from datetime import UTC, datetime
from typing import Final

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Table
from flannelette.services.runtime.cache.node_state import NodeState
from flannelette.services.runtime.cache.state_file import StateFile
from flannelette.services.runtime.state import UnreadableState
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

PATIENCE: Final = 1.0
"""Seconds that a lease service has to begin a snapshot. A lease service that starts at the same time takes less."""


class CachedTable:
    """The lease table from the state file. `table` is None while it is not in force, and after the first snapshot."""

    def __init__(self, node: str, file: StateFile) -> None:
        found = file.state_of(node)
        state = found[0] if found else None
        self.own = state.own if state else None
        """The lease that the node had published."""
        self.previous_subnets = state.previous_subnets if state else ()
        """Previous subnets of the node, the last one first."""
        self.network = state.network if state else None
        """The network configuration that was in force on this node."""
        earlier = state.earlier_networks if state else ()
        self.networks = earlier if self.network is None else (self.network, *earlier)
        """The same, and those before it whose backends some peer still had."""
        self.table: Table | None = None
        self.confirmed_at = found[1] if found else 0.0
        """Unix time at which the table was last confirmed."""
        self._file = file
        self._state = state

    @property
    def since(self) -> str:
        """The age of the table and the reason why it is in force, as text."""
        when = datetime.fromtimestamp(self.confirmed_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        return f"{when}: no lease service has sent any since the start"

    def choose(self, received: Table, *, is_away: bool) -> Table | None:
        """The table in force: the received one if complete, else the cached one; None: neither is usable yet.

        Where the received one awaits the leases of another cluster, those that are cached are put into it.
        `is_away`: no lease service is about to send a snapshot.
        """
        if received.synced and received.network is not None:
            if received.awaited and self._state is not None:
                self.table = self._open(self._state)
            if received.awaited and self.table is not None:
                received.adopt(self.table.leases)
            self._state, self.table = None, None
            return received
        if self.table is None and self._state is not None and is_away:
            self.table, self._state = self._open(self._state), None
        return self.table

    def _open(self, state: NodeState) -> Table | None:
        try:
            table = state.table()
        except UnreadableState as error:
            self._file.reject(error)
            return None
        log.warning("the cached leases are in force until a lease service sends its table", leases=len(table.leases))
        return table


def stale_reason(lease: Lease, confirmed_at: float, now: float) -> str:
    """Why a cached lease may belong to another node by now; empty: it is still the node's."""
    if lease.expires_at is None:
        return ""  # a reservation, or a subnet that the store assigns by node name, as Kubernetes does
    if now < confirmed_at:
        return "the clock is behind the time at which the lease was last confirmed"
    return "the lease has expired" if now >= lease.expires_at else ""
