"""What a lease service counts."""

from typing import Final

from prometheus_client import Counter, Gauge

LEASES: Final = Gauge("flannelette_lease_leases", "Leases in the table")
WATCHERS: Final = Gauge("flannelette_lease_watchers", "Open WatchLeases streams")
STORE_CONNECTED: Final = Gauge("flannelette_lease_store_connected", "1 while the table follows the store", ["kind"])
QUARANTINED: Final = Gauge("flannelette_lease_quarantined_keys", "Keys of the store that are refused")
HISTORY_STEPS: Final = Gauge("flannelette_lease_history_steps", "Recent steps that a watcher can resume from")
HISTORY_BYTES: Final = Gauge("flannelette_lease_history_bytes", "About what they take in memory")
MESSAGES: Final = Counter("flannelette_lease_messages_total", "Messages of leases sent to watchers")
RESETS: Final = Counter("flannelette_lease_resets_total", "Snapshots sent to watchers, by why", ["reason"])
ACQUIRES: Final = Counter("flannelette_lease_acquires_total", "AcquireLease calls, by status code", ["code"])
