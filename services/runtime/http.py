"""HTTP for probes and Prometheus: `/healthz`, `/readyz` (flannel's texts) and `/metrics`."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from services.core.errors import Misconfigured
from services.runtime.health import Health
from services.runtime.prometheus import exposition

_SECONDS: Final = 5.0
"""For a request and its answer, of which there is one a connection."""
_MOST: Final = 128
"""Connections. One more ends the oldest: who asks an honest question has had its answer long ago."""
_BACKLOG: Final = 1024
"""Connections that the kernel keeps until we get to them."""
_LONGEST: Final = 8192
"""Bytes of a request."""


@asynccontextmanager
async def http_server(ip: str, port: int, health: Health) -> AsyncIterator[None]:
    """Serves while the block runs; port 0 serves nothing. Raises Misconfigured when the port is taken."""
    if port == 0:
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
                writer.write(_response(request, health))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writers.pop(writer, None)
            writer.transport.abort()

    try:
        server = await asyncio.start_server(serve, ip, port, limit=_LONGEST, backlog=_BACKLOG)
    except (OSError, OverflowError) as error:
        raise Misconfigured(
            f"cannot serve HTTP on {ip}:{port}: {error}; use another --healthz-ip or --healthz-port"
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


def _response(request: bytes, health: Health) -> bytes:
    method, _, rest = request.partition(b"\r\n")[0].partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("ascii", "replace")
    status, kind, body = (
        _answer(path, health) if method in (b"GET", b"HEAD") else (501, _TEXT, b"only GET and HEAD are supported")
    )
    head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
    return f"{head}Connection: close\r\n\r\n".encode() + (b"" if method == b"HEAD" else body)


_TEXT: Final = "text/plain; charset=utf-8"
_REASONS: Final = {200: "OK", 404: "Not Found", 501: "Not Implemented", 503: "Service Unavailable"}


def _answer(path: str, health: Health) -> tuple[int, str, bytes]:
    match path:
        case "/healthz":
            return 200, _TEXT, b"flanneld is running"
        case "/readyz":
            return (200, _TEXT, b"flanneld is ready") if health.ready else (503, _TEXT, b"flanneld is not ready yet")
        case "/metrics":
            return 200, *exposition()
    return 404, _TEXT, b"not found: use /healthz, /readyz or /metrics"
