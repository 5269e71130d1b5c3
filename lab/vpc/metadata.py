"""The metadata service of an instance with a role, of version 2 (IMDSv2), which moto has in part only."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

_TOKEN: Final = "a-token-of-the-metadata-service"  # noqa: S105
_SECONDS: Final = "X-aws-ec2-metadata-token-ttl-seconds"
_MAC: Final = "06:00:00:00:00:01"


@contextmanager
def metadata(vpc: str, key: str, secret: str, port: int = 0) -> Iterator[str]:
    """The URL of the service, on loopback. The instance is in this VPC, and its role has these credentials."""
    role = {
        "Code": "Success",
        "Type": "AWS-HMAC",
        "AccessKeyId": key,
        "SecretAccessKey": secret,
        "Token": "seeded-session-token",
        "Expiration": "2100-01-01T00:00:00Z",
        "LastUpdated": "2026-01-01T00:00:00Z",
    }
    values = {
        "/latest/meta-data/placement/region": "eu-central-1",
        "/latest/meta-data/mac": _MAC,
        f"/latest/meta-data/network/interfaces/macs/{_MAC}/vpc-id": vpc,
        "/latest/meta-data/iam/security-credentials/": "flannelette",
        "/latest/meta-data/iam/security-credentials/flannelette": json.dumps(role),
    }

    class Answers(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            is_right = self.path == "/latest/api/token" and _SECONDS in self.headers
            self._answer(200 if is_right else 400, _TOKEN)

        def do_GET(self) -> None:
            if self.headers.get("X-aws-ec2-metadata-token") != _TOKEN:
                self._answer(401, "no token")
            else:
                self._answer(200 if self.path in values else 404, values.get(self.path, ""))

        def _answer(self, code: int, text: str) -> None:
            self.send_response(code)
            if self.command == "PUT":
                self.send_header(_SECONDS, "300")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    with serving(Answers, port) as url:
        yield url


@contextmanager
def serving(handler: type[BaseHTTPRequestHandler], port: int = 0) -> Iterator[str]:
    """The URL of a server on loopback with this handler; port 0: any."""
    server = ThreadingHTTPServer(("127.0.0.1", port), handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
