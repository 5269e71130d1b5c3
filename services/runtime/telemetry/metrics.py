"""The parts of Prometheus' client that a service needs to count.

The whole package also imports an HTTP server and client, 30 ms at every start. It is imported with the first
exposition, which then has the metrics of the process too.
"""

from collections.abc import Iterator
from typing import Any, Final

from flannelette.services.runtime.os.partial_import import partial_import

with partial_import("prometheus_client"):
    from prometheus_client.metrics import Counter, Gauge, Histogram
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.registry import REGISTRY, Collector

__all__ = [
    "REGISTRY",
    "Collector",
    "Counter",
    "Gauge",
    "GaugeMetricFamily",
    "Histogram",
    "exposition",
    "label_network",
]


_LABELS: Final = dict[str, str]()
"""Labels of all samples of the process."""


def label_network(name: str) -> None:
    """Gives all samples the label `network`; an empty name: none."""
    _LABELS.update({"network": name} if name else {})


class _Labelled:
    """All metrics, with the labels of the process."""

    def collect(self) -> Iterator[Any]:
        """See Collector."""
        for family in REGISTRY.collect():
            family.samples = [each._replace(labels={**each.labels, **_LABELS}) for each in family.samples]
            yield family


def exposition() -> tuple[str, bytes]:
    """The content type of the Prometheus format, and all metrics in it."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return CONTENT_TYPE_LATEST, generate_latest(_Labelled())
