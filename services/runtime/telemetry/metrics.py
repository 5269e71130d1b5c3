"""The parts of Prometheus' client that a service needs to count; and HTTP for probes and Prometheus: `/healthz`,
`/readyz` (flannel's texts) and `/metrics`.

The whole package of the client also imports an HTTP server and client, 30 ms at every start. It is imported with the
first exposition, which then has the metrics of the process too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

from flannelette.services.core.errors import Misconfigured
from flannelette.services.runtime.os.partial_import import partial_import
from flannelette.services.runtime.telemetry.health import Health

with partial_import("prometheus_client"):
    from prometheus_client.metrics import Counter, Gauge, Histogram
    from prometheus_client.metrics_core import GaugeMetricFamily
    from prometheus_client.registry import REGISTRY, Collector

__all__ = [
    "ALL",
    "REGISTRY",
    "Collector",
    "Counter",
    "Gauge",
    "GaugeMetricFamily",
    "Histogram",
    "Metrics",
    "exposition",
    "http_server",
    "is_served",
    "label_network",
    "own_metrics",
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


ALL: Final = _Labelled()


def exposition(collector: Any = ALL) -> tuple[str, bytes]:
    """The content type of the Prometheus format, and the collector's metrics in it."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    return CONTENT_TYPE_LATEST, generate_latest(collector)


Metrics: TypeAlias = Callable[[], Awaitable[tuple[str, bytes]]]
"""Returns the content type and the body of `/metrics`."""

_UNIX: Final = "unix:"
_SECONDS: Final = 5.0
"""Time for the one request of a connection and its answer."""
_MOST: Final = 128
"""Simultaneous connections. One more closes the oldest."""
_BACKLOG: Final = 1024
"""Connections that wait in the kernel to be accepted."""
_LONGEST: Final = 8192
"""Bytes of a request."""


async def own_metrics() -> tuple[str, bytes]:
    """The metrics of this process."""
    return exposition()


def is_served(ip: str, port: int) -> bool:
    """Whether `http_server` serves anything for these settings."""
    return port != 0 or ip.startswith(_UNIX)


@asynccontextmanager
async def http_server(ip: str, port: int, health: Health, metrics: Metrics = own_metrics) -> AsyncIterator[None]:
    """Serves on IP and port, or on `unix:PATH` with any port, while the block runs; port 0 serves nothing.

    Raises Misconfigured when the address cannot be used.
    """
    if not is_served(ip, port):
        yield
        return
    writers: dict[asyncio.StreamWriter, None] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers[writer] = None
        if len(writers) > _MOST:
            oldest = next(iter(writers))
            del writers[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(_SECONDS):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(await _response(request, health, metrics))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writers.pop(writer, None)
            writer.transport.abort()

    try:
        if ip.startswith(_UNIX):
            path = Path(ip.removeprefix(_UNIX))
            path.parent.mkdir(mode=0o770, parents=True, exist_ok=True)
            server = await asyncio.start_unix_server(serve, path, limit=_LONGEST, backlog=_BACKLOG)
        else:
            server = await asyncio.start_server(serve, ip, port, limit=_LONGEST, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        address = ip if ip.startswith(_UNIX) else f"{ip}:{port}"
        raise Misconfigured(
            f"cannot serve HTTP on {address}: {error}; use another --healthz-ip or --healthz-port"
        ) from None
    try:
        yield
    finally:
        server.close()
        for writer in list(writers):
            writer.transport.abort()
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await server.wait_closed()


async def _response(request: bytes, health: Health, metrics: Metrics) -> bytes:
    method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
    status, kind, body = (
        await _answer(path, health, metrics)
        if method in (b"GET", b"HEAD")
        else (501, _TEXT, b"only GET and HEAD are supported")
    )
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + (b"" if method == b"HEAD" else body)


_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {200: "OK", 404: "Not Found", 501: "Not Implemented", 503: "Service Unavailable"}


async def _answer(path: str, health: Health, metrics: Metrics) -> tuple[int, str, bytes]:
    match path:
        case "/healthz":
            return 200, _TEXT, b"flanneld is running"
        case "/readyz":
            return (
                (200, _TEXT, b"flanneld is ready")
                if health.is_in_service
                else (503, _TEXT, b"flanneld is not ready yet")
            )
        case "/metrics":
            return 200, *await metrics()
    return 404, _TEXT, b"not found: use /healthz, /readyz or /metrics"
