"""What Prometheus sees of the dataplane."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from flannelette.services.runtime.telemetry.metrics import (
    Collector,
    Counter,
    Gauge,
    GaugeMetricFamily,
    Histogram,
)

REPAIRS: Final = Counter(
    "flannelette_kernel_repairs",
    "Repairs of kernel objects and devices that another program changed",
    ["cause"],
)
REFUSED: Final = Counter(
    "flannelette_leases_refused",
    "Leases, or subnets of leases, that the dataplane refused",
    ["rule"],
)
RESYNC_SECONDS: Final = Histogram(
    "flannelette_kernel_resync_seconds",
    "Time of a comparison of the whole kernel state, with its repair",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10),
)
PROBE_SECONDS: Final = Histogram(
    "flannelette_probe_seconds",
    "Round-trip time of small probes to peers, by what carries them (overlay, underlay)",
    ["layer"],
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1),
)
PROBES_LOST: Final = Counter(
    "flannelette_probes_lost",
    "Probes to peers that were not answered within a second",
    ["layer"],
)
PENDING: Final = Gauge(
    "flannelette_network_change_pending",
    "1 while the node keeps a subnet for which the configuration has no room",
)


class NumberCollector(Collector):
    """A gauge with one label, counted at every scrape and not at every change.

    `count` is called in another thread than the event loop's.
    """

    def __init__(self, name: str, text: str, label: str, count: Callable[[], Mapping[str, int]]) -> None:
        self._name, self._text, self._label, self._count = name, text, label, count

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """See Collector."""
        found = GaugeMetricFamily(self._name, self._text, labels=[self._label])
        for value, number in self._count().items():
            found.add_metric([value], number)
        yield found
