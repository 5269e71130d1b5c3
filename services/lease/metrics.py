"""What a lease service counts."""

from collections.abc import Callable
from functools import partial
from typing import Final

from flannelette.services.core.family import FAMILIES, Family
from flannelette.services.core.ipam import Usage
from flannelette.services.runtime.telemetry.metrics import Counter, Gauge, Histogram

LEASES: Final = Gauge("flannelette_lease_leases", "Leases in the table")
WATCHERS: Final = Gauge("flannelette_lease_watchers", "Open WatchLeases streams")
STORE_CONNECTED: Final = Gauge("flannelette_lease_store_connected", "1 while the table follows the store", ["kind"])
QUARANTINED: Final = Gauge(
    "flannelette_lease_quarantined_keys", "Keys of the store that are refused, by kind", ["kind"]
)
HELD_REMOVALS: Final = Gauge(
    "flannelette_lease_held_removals", "Leases that the store or another cluster has lost and the guard keeps"
)
GUARDED_REMOVALS: Final = Counter(
    "flannelette_lease_guarded_removals_total", "Outcomes of removals that were held back", ["outcome"]
)
for _outcome in ("held", "released", "returned", "confirmed_by_listing", "confirmed_by_operator"):
    GUARDED_REMOVALS.labels(_outcome)
HELD_CHANGES: Final = Counter(
    "flannelette_lease_held_changes_total",
    "Changes of leases that had to wait or were refused: their node had too many",
)
HISTORY_STEPS: Final = Gauge("flannelette_lease_history_steps", "Recent steps that a watcher can resume from")
HISTORY_BYTES: Final = Gauge("flannelette_lease_history_bytes", "Approximate memory of these steps, in bytes")
MESSAGES: Final = Counter("flannelette_lease_messages_total", "Messages of leases sent to watchers")
MESSAGE_BYTES: Final = Counter("flannelette_lease_message_bytes_total", "Bytes of these messages")
RESETS: Final = Counter("flannelette_lease_resets_total", "Snapshots sent to watchers, by reason", ["reason"])
ACQUIRES: Final = Counter("flannelette_lease_acquires_total", "AcquireLease calls, by status code", ["code"])
NODES_CONNECTED: Final = Gauge("flannelette_lease_nodes_connected", "Nodes whose dataplane is connected")
NODES_BEHIND: Final = Gauge("flannelette_lease_nodes_behind", "Of these, those that lack the newest change")
NODES_FAILING: Final = Gauge("flannelette_lease_nodes_failing", "Of these, those that could not program some leases")
CONVERGENCE: Final = Histogram(
    "flannelette_convergence_seconds",
    "From a change of the table until every connected node had it in its kernel",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300),
)
IMPORT_CONNECTED: Final = Gauge(
    "flannelette_lease_import_connected", "1 while the leases imported from a cluster follow it", ["cluster"]
)
IMPORT_REFUSED: Final = Gauge(
    "flannelette_lease_import_refused", "Leases of a cluster that are not imported", ["cluster"]
)
SUBNETS: Final = Gauge(
    "flannelette_lease_subnets",
    "Subnets of the network: free, leased, reserved, or blocked by what overlaps them",
    ["family", "use"],
)
_USES: Final = ("free", "leased", "reserved", "blocked")


def follow_subnets(usage: Callable[[Family], Usage]) -> None:
    """SUBNETS shows `usage` from now on. It is called when the metrics are read, in the event loop."""

    def number(family: Family, use: str) -> float:
        now = usage(family)
        return float(now.total - now.used if use == "free" else getattr(now, use))

    for family in FAMILIES:
        for use in _USES:
            SUBNETS.labels(family.name, use).set_function(partial(number, family, use))
