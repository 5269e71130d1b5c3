"""A provider that a test plays: an account in memory, behind an HTTP server."""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from itertools import count
from threading import Lock
from typing import Any, TypeAlias, TypeVar
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


@dataclass
class Account(ABC):
    """What any provider has whose requests are signed with keys."""

    keys: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Secret and token by id."""
    has_role: bool = True
    refusals: dict[str, list[Refusal | None]] = field(default_factory=dict)
    """What the next calls of an action get; None: an answer."""
    calls: Counter[str] = field(default_factory=Counter)
    signers: set[str] = field(default_factory=set)
    """Who has signed requests."""
    url: str = ""
    """Of the API, and of the metadata service of an instance."""
    numbers: Iterator[int] = field(default_factory=lambda: count(1000))
    """For names of what is made."""
    lock: Lock = field(default_factory=Lock)
    """Held while a request is answered."""

    @abstractmethod
    def answer(self, request: Request) -> Answer:
        """The API and the metadata service."""

    @abstractmethod
    def table(self) -> dict[str, str]:
        """Next hops by destination, in the table that nodes have if no other is named."""

    @abstractmethod
    def delete(self, cidr: str) -> None:
        """Somebody deletes the routes to this destination."""

    @abstractmethod
    def divert(self, cidr: str, hop: str) -> None:
        """Somebody lets them lead elsewhere."""

    def refuse(self, action: str) -> None:
        """Raises what this call is to get."""
        refusal = self.refusals[action].pop(0) if self.refusals.get(action) else None
        if refusal is not None:
            raise refusal

    @property
    def flags(self) -> tuple[str, str]:
        """What the process is started with."""
        return f"--cloud-endpoint={self.url}", f"--cloud-metadata={self.url}"


_Account = TypeVar("_Account", bound=Account)


@contextmanager
def playing(account: _Account) -> Iterator[_Account]:
    """The account, at its URL; requests are answered one at a time."""

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            body = self.rfile.read(int(headers.get("content-length") or 0))
            with account.lock:
                status, document = account.answer(Request(self.command, parts.path, query, headers, body))
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
        account.url = url
        yield account


def refuse_unknown(given: Mapping[str, Any], allowed: str, required: str) -> None:
    """Raises Refusal for a field that is not documented, or one that lacks. Names are separated by blanks."""
    for name in given.keys() - set(allowed.split()) - set(required.split()):
        raise Refusal("UnknownParameter", f"the parameter {name} is not recognized")
    for name in set(required.split()) - given.keys():
        raise Refusal("MissingParameter", f"the parameter {name} is missing")
