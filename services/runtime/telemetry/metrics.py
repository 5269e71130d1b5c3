"""The parts of Prometheus' client that a service needs to count.

The whole package also imports an HTTP server and client, 30 ms at every start. It is imported with the first
exposition, which then has the metrics of the process too.
"""

from services.runtime.os.partial_import import partial_import

with partial_import("prometheus_client"):
    from prometheus_client.metrics import Counter, Gauge, Histogram
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.registry import REGISTRY, Collector

__all__ = ["REGISTRY", "Collector", "Counter", "Gauge", "GaugeMetricFamily", "Histogram", "exposition"]


def exposition() -> tuple[str, bytes]:
    """The content type of the Prometheus format, and all metrics in it."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return CONTENT_TYPE_LATEST, generate_latest()
