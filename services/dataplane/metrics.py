"""What Prometheus sees of the dataplane."""

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

PEERS: Final = Gauge("flannelette_peers", "Peers by state, as GetStatus says", ["state"])
REPAIRS: Final = Counter("flannelette_kernel_repairs", "Kernel objects put right that no lease change explains")
RESYNC_SECONDS: Final = Histogram(
    "flannelette_kernel_resync_seconds",
    "Time of a comparison of the whole kernel state, with its repair",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
