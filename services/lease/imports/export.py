"""VIEW_EXPORTED: what the lease services of other clusters see of this one, serialised."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, Table, changes_between
from flannelette.services.core.network import NetworkConfig
from flannelette.services.lease.imports.policy import shown_options
from flannelette.services.lease.watch.broker import Broker
from flannelette.services.lease.watch.diff import NOTHING
from flannelette.services.lease.watch.encoding import MOST_CHANGES
from flannelette.services.runtime.lease.wire import step_to_bytes

_PAUSE: Final = 0.05
"""Seconds between two looks at the table, each of which costs a comparison of all leases: 1 ms for 10,000."""


async def watch_exported(broker: Broker, shows: Callable[[Lease], bool]) -> AsyncGenerator[bytes, None]:
    """The leases that are shown, then every change. It starts with a snapshot, and has no cursor.

    Other clusters do not see when a lease expires, nor what the configuration says beside the ranges and the backend.
    """
    shown = Table()
    while True:
        table = broker.table
        if not table.synced:
            step = Step(store=table.store if table.store != shown.store else None)
        else:
            step = _step(table, shown, shows)
        if step == NOTHING:
            await broker.notifier.next()
            await asyncio.sleep(_PAUSE)
            continue
        count = len(step.changes)
        for start in range(0, max(count, 1), MOST_CHANGES):
            part, is_last = step.changes[start : start + MOST_CHANGES], start + MOST_CHANGES >= count
            message = replace(step, changes=part) if start == 0 else Step(changes=part)
            message = replace(message, synced=step.synced and (is_last or not step.reset))
            shown.fold(message)
            yield step_to_bytes(message)


def _step(table: Table, shown: Table, shows: Callable[[Lease], bool]) -> Step:
    """What takes an importer from what it was shown to the table as it is."""
    leases: Mapping[str, Lease] = {
        name: lease if lease.expires_at is None else lease.with_time(None)
        for name, lease in table.leases.items()
        if shows(lease)
    }
    network = exported(table.network) if table.network else None
    step = Step(
        reset=not shown.synced,
        changes=changes_between(shown.leases, leases),
        network=network if network != shown.network else None,
        store=table.store if table.store != shown.store else None,
    )
    return step if step == NOTHING else replace(step, synced=True)


def exported(network: NetworkConfig) -> NetworkConfig:
    """The network as other clusters may see it: without keys, passwords and commands."""
    told: dict[str, Any] = {"EnableIPv4": False}
    for n in network.families:
        prefix = n.family.key_prefix
        told |= {f"Enable{n.family}": True, f"{prefix}Network": str(n.cidr)}
        if n.subnet_length:
            told[f"{prefix}SubnetLen"] = n.subnet_length
    told["Backend"] = {"Type": network.backend_type} | shown_options(network)
    return replace(network, source=json.dumps(told), warnings=(), beside=(), imported=())
