"""What Prometheus sees of the dataplane."""

from collections import Counter as TallyCounter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from services.runtime.telemetry.metrics import Collector, Counter, Gauge, GaugeMetricFamily, Histogram

REPAIRS: Final = Counter(
    "flannelette_kernel_repairs", "Repairs of kernel objects and devices that another program changed", ["cause"]
)
REFUSED: Final = Counter(
    "flannelette_leases_refused", "Leases, or subnets of leases, that the dataplane refused", ["rule"]
)
RESYNC_SECONDS: Final = Histogram(
    "flannelette_kernel_resync_seconds",
    "Time of a comparison of the whole kernel state, with its repair",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
PENDING: Final = Gauge(
    "flannelette_network_change_pending", "1 while the node keeps a subnet for which the configuration has no room"
)


class PeerCollector(Collector):
    """Peers by state, counted at every scrape and not at every lease change."""

    def __init__(self, count: Callable[[], Mapping[str, int]]) -> None:
        self._count = count

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        peers = GaugeMetricFamily("flannelette_peers", "Peers by state, as GetStatus says", labels=["state"])
        for state, number in self._count().items():
            peers.add_metric([state], number)
        yield peers


class FindingCollector(Collector):
    """What else of the host is in the way, by check."""

    def __init__(self, checks: Callable[[], Iterable[str]]) -> None:
        self._checks = checks

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        found = GaugeMetricFamily(
            "flannelette_findings", "Problems of the host that break the overlay, by check", labels=["check"]
        )
        for check, number in TallyCounter(self._checks()).items():
            found.add_metric([check], number)
        yield found
