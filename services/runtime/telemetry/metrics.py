"""The parts of Prometheus' client that a service needs to count.

The whole package also imports an HTTP server and client, 30 ms at every start. It is imported with the first
exposition, which then has the metrics of the process too.
"""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeVar

from flannelette.services.runtime.os.partial_import import partial_import
from flannelette.services.runtime.telemetry.network import current_network

with partial_import("prometheus_client"):
    from prometheus_client.metrics import Counter, Gauge, Histogram
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.registry import REGISTRY, Collector

__all__ = ["REGISTRY", "Collector", "Counter", "Gauge", "GaugeMetricFamily", "Histogram", "exposition", "per_network"]


def exposition() -> tuple[str, bytes]:
    """The content type of the Prometheus format, and all metrics in it."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return CONTENT_TYPE_LATEST, generate_latest()


M = TypeVar("M", Counter, Gauge, Histogram)


def per_network(kind: type[M], *what: Any, **more: Any) -> M:
    """A metric with the label `network` where the service's networks have names; used like any other."""
    found = _PerNetwork(partial(kind, *what, **{**more, "registry": None}))
    REGISTRY.register(found)
    return found  # type: ignore[return-value]  # it passes everything on


class _PerNetwork(Collector):
    """One metric of each network, by name; used as that of the network for which the task works."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._metrics = {"": make()}

    def __getattr__(self, name: str) -> Any:
        network = current_network()
        if network not in self._metrics:
            self._metrics = {**self._metrics, network: self._make()}
        return getattr(self._metrics[network], name)

    def collect(self) -> Iterable[Any]:
        """See Collector. That of no network is left out where there are others."""
        named = {name: metric for name, metric in self._metrics.items() if name}
        if not named:
            return list(self._metrics[""].collect())
        families: list[Any] = []
        for name, metric in named.items():
            for place, family in enumerate(metric.collect()):
                samples = [each._replace(labels={**each.labels, "network": name}) for each in family.samples]
                if place < len(families):
                    families[place].samples += samples
                else:
                    family.samples = samples
                    families.append(family)
        return families
