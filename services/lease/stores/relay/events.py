"""The table of the lease service above as events of a store. No IO: a feed folds, this says what is new."""

from collections.abc import Mapping

from flannelette.services.core.leases.table import (
    NO_OVERRIDES,
    Change,
    PublicIpOverrides,
    Removed,
    StoreStatus,
    Table,
    Upserted,
)
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.stores.store import Changed, Refusal, Snapshot, StoreEvent

KIND = "relay"


class TableEvents:
    """The events by which the broker follows a feed's table.

    There is no event before the first complete table; from then on the last one stays in force, whatever becomes of
    the lease service above: what a new start of it lacks is removed when its snapshot is complete, and not before.
    """

    def __init__(self, address: str) -> None:
        self.touched: set[str] = set()
        """Leases that the feed has changed since the last events."""
        self.refused: dict[str, Refusal] = {}
        """Keys that are quarantined above."""
        self._address = address
        self._has_told = False
        self._network: tuple[NetworkConfig | None, str] = (None, "")
        self._refused: dict[str, Refusal] = {}
        self._choices: Mapping[str, PublicIpOverrides] = NO_OVERRIDES
        self._awaited: frozenset[str] = frozenset()
        self._status: StoreStatus | None = None

    def events(self, table: Table, connected: bool, error: str) -> list[StoreEvent]:
        """What has happened since the last call. `connected` and `error` are those of the feed."""
        events: list[StoreEvent] = []
        if not self._has_told:
            if table.synced:
                self._has_told, self._status = True, None  # a Snapshot means connected, true or not
                self._note(table)
                leases, refused = dict(table.leases), dict(self.refused)
                events.append(
                    Snapshot(leases, table.network, table.network_error, refused, table.overrides, table.awaited)
                )
        elif (changed := self._changed(table)) != Changed():
            events.append(changed)
        status = self._status_of(table, connected, error)
        if status is not None and status != self._status:
            self._status = status
            events.append(status)
        return events

    def _changed(self, table: Table) -> Changed:
        touched = sorted(self.touched)
        removed: list[Change] = [Removed(name) for name in touched if name not in table.leases]
        network, network_error = self._network
        mended = network_error and not table.network_error
        new = table.network if table.network != network or mended else None
        changed = Changed(
            # removals first, so that a subnet can change its name
            (*removed, *(Upserted(table.leases[name]) for name in touched if name in table.leases)),
            new,
            table.network_error if new or table.network_error != network_error else "",  # a network clears it
            {key: reason for key, reason in self.refused.items() if self._refused.get(key) != reason},
            frozenset(self._refused.keys() - self.refused.keys()),
            overrides=table.overrides if table.overrides != self._choices else None,
            awaited=table.awaited if table.awaited != self._awaited else None,
        )
        self._note(table)
        return changed

    def _note(self, table: Table) -> None:
        self.touched.clear()
        self._network = (table.network, table.network_error)
        self._refused = dict(self.refused)
        self._choices, self._awaited = table.overrides, table.awaited

    def _status_of(self, table: Table, connected: bool, error: str) -> StoreStatus | None:
        """None: as before, while a snapshot is on its way."""
        if not connected:
            return StoreStatus(KIND, False, error)
        upstream = table.store
        if upstream is not None and not upstream.connected:
            return StoreStatus(
                KIND,
                False,
                f"the {upstream.kind} store of the lease service at {self._address} is away: {upstream.error}",
            )
        return StoreStatus(KIND, True) if table.is_complete else None
