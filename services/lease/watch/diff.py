"""The difference that an event of the store makes to the lease table. Pure, by value: no difference, no message."""

from collections.abc import Iterable, Mapping
from typing import Final

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import (
    Change,
    Removed,
    Step,
    StoreStatus,
    Table,
    Upserted,
    changes_between,
)
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.stores.store import Changed, Snapshot, StoreEvent

NOTHING: Final = Step()
_NO_NETWORK: Final = "the store has no network configuration"


def step_of(table: Table, event: StoreEvent) -> Step:
    """The step that takes the table where the event says; NOTHING if it is there already.

    A Snapshot after a reconnect is a difference like any other. Before the first one no lease changes: it will
    hold all of them.
    """
    match event:
        case StoreStatus():
            return Step(store=event if event != table.store else None)
        case Snapshot():
            reason = event.network_error or ("" if event.network else _NO_NETWORK)
            network, error = _network_change(table, event.network, reason)
            store = table.store
            return Step(
                changes=changes_between(table.leases, event.leases),
                network=network,
                network_error=error,
                store=StoreStatus(store.kind, True) if store and not store.connected else None,
                synced=not table.synced,
                awaited=event.awaited if event.awaited != table.awaited else None,
            )
        case Changed():
            network, error = _network_change(table, event.network, event.network_error)
            changes = _effective(table.leases, event.changes) if table.synced else ()
            awaited = event.awaited if event.awaited != table.awaited else None
            return Step(changes=changes, network=network, network_error=error, awaited=awaited)


def _network_change(table: Table, network: NetworkConfig | None, error: str) -> tuple[NetworkConfig | None, str]:
    """A configuration that is right again clears the error, so it is sent even if it is the last good one."""
    new = network if network is not None and (network != table.network or table.network_error) else None
    return new, error if new or error != table.network_error else ""  # a configuration clears the error


def _effective(leases: Mapping[str, Lease], changes: Iterable[Change]) -> tuple[Change, ...]:
    """The changes without those that change nothing when applied in order."""
    seen: dict[str, Lease | None] = {}
    kept: list[Change] = []
    for change in changes:
        name, after = change.name, change.after
        before = seen[name] if name in seen else leases.get(name)
        if before != after:
            kept.append(Upserted(after) if after else Removed(name))
        seen[name] = after
    return tuple(kept)
