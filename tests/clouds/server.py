"""The HTTP server of a provider that a test plays: one function from a request to an answer."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from threading import Lock
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from tests.clouds.aws import serving

Answer: TypeAlias = tuple[int, Any]
"""Status, and a document or a text."""


@dataclass(frozen=True, slots=True)
class Request:
    """What came in; names of headers are in lower case."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes


class Refusal(Exception):
    """The provider's error."""

    def __init__(self, code: str, message: str = "as the provider says it", status: int = 400) -> None:
        super().__init__(code)
        self.code = code
        self.message = message
        self.status = status


@contextmanager
def playing(answer: Callable[[Request], Answer]) -> Iterator[str]:
    """The URL; requests are answered one at a time."""
    lock = Lock()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length") or 0))
            with lock:
                status, document = answer(Request(self.command, parts.path, query, headers, body))
            is_text = isinstance(document, str)
            data = (document if is_text else json.dumps(document)).encode()
            self.send_response(status)
            self.send_header("Content-Type", "text/plain" if is_text else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_PUT = _handle  # noqa: N815 - the names of the library

        def log_message(self, *arguments: Any) -> None:
            pass

    with serving(Answers) as url:
        yield url


def refuse_unknown(given: Mapping[str, Any], allowed: str, required: str) -> None:
    """Raises Refusal for a field that is not documented, or one that lacks. Names are separated by blanks."""
    for name in given.keys() - set(allowed.split()) - set(required.split()):
        raise Refusal("UnknownParameter", f"the parameter {name} is not recognized")
    for name in set(required.split()) - given.keys():
        raise Refusal("MissingParameter", f"the parameter {name} is missing")
