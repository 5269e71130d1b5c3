"""HTTP for probes and Prometheus: `/healthz`, `/readyz` (flannel's texts) and `/metrics`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from services.core.errors import Misconfigured
from services.runtime.health import Health
from services.runtime.prometheus import exposition


@contextmanager
def http_server(ip: str, port: int, health: Health) -> Iterator[None]:
    """Serves while the block runs; port 0 serves nothing. Raises Misconfigured when the port is taken."""
    if port == 0:
        yield
        return

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, kind, body = _answer(self.path.partition("?")[0], health)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
            """Probes are not news."""

    try:
        server = ThreadingHTTPServer((ip, port), Handler)
    except (OSError, OverflowError) as error:
        raise Misconfigured(
            f"cannot serve HTTP on {ip}:{port}: {error}; use another --healthz-ip or --healthz-port"
        ) from None
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, name="http", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


def _answer(path: str, health: Health) -> tuple[int, str, bytes]:
    text = "text/plain; charset=utf-8"
    match path:
        case "/healthz":
            return 200, text, b"flanneld is running"
        case "/readyz":
            return (200, text, b"flanneld is ready") if health.ready else (503, text, b"flanneld is not ready yet")
        case "/metrics":
            return 200, *exposition()
    return 404, text, b"there is /healthz, /readyz and /metrics"
