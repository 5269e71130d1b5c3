"""Google's Compute API as documented, in memory: strict about methods, paths, fields and tokens."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from threading import Event
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from tests.clouds.aws import serving

TOKEN: Final = "ya29.SEEDED-TOKEN-of-the-service-account"  # noqa: S105
_BASE: Final = "/compute/v1/projects/demo"
_LINK: Final = "https://www.googleapis.com/compute/v1/projects/demo"
_NAME: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_FIELDS: Final = {"name", "description", "destRange", "network", "nextHopInstance", "priority", "tags"}
_VALUES: dict[str, str] = {
    "/computeMetadata/v1/project/project-id": "demo",
    "/computeMetadata/v1/instance/network-interfaces/0/network": "projects/1/networks/default",
    "/computeMetadata/v1/instance/service-accounts/default/token": json.dumps(
        {"access_token": TOKEN, "expires_in": 3600, "token_type": "Bearer"}
    ),
    "/computeMetadata/v1/instance/service-accounts/default/": json.dumps(
        {"email": "flannelette@demo", "scopes": [], "aliases": ["default"]}
    ),
    "/computeMetadata/v1/universe/universe-domain": "googleapis.com",
}
_ACCOUNTS: Final = "/computeMetadata/v1/instance/service-accounts/"
_VALUES |= {
    key.replace("/default/", "/flannelette@demo/"): value
    for key, value in _VALUES.items()
    if key.startswith(_ACCOUNTS)
}


@dataclass
class Project:
    """Project `demo` with network `default`."""

    instances: dict[str, Any] = field(default_factory=dict)
    routes: dict[str, Any] = field(default_factory=dict)
    operations: dict[str, Any] = field(default_factory=dict)
    refusals: list[tuple[int, str]] = field(default_factory=list)
    """Status and reason of the next calls."""
    faults: dict[str, tuple[int, str]] = field(default_factory=dict)
    """The same, of all calls with this method and path, and perhaps destination; of `operation`: its end."""
    calls: Counter[str] = field(default_factory=Counter)
    """By method and path."""
    page: int = 2
    """Items of a page."""
    url: str = ""
    hold: Event = field(default_factory=Event)
    """Once it is set, operations end."""

    def instance(self, name: str, address: str, *, forwards: bool = True) -> None:
        self.instances[name] = {
            "selfLink": f"{_LINK}/zones/z1/instances/{name}",
            "canIpForward": forwards,
            "networkInterfaces": [{"network": f"{_LINK}/global/networks/default", "networkIP": address}],
        }

    def insert(self, name: str, cidr: str, instance: str, mark: str = "flannelette") -> None:
        """A route that has been there for long."""
        self.routes[name] = {
            "name": name,
            "description": mark,
            "destRange": cidr,
            "network": f"{_LINK}/global/networks/default",
            "nextHopInstance": f"{_LINK}/zones/z1/instances/{instance}",
            "priority": 1000,
            "tags": [],
        }

    def table(self) -> dict[str, str]:
        """Instances by destination."""
        return {r["destRange"]: r["nextHopInstance"].rpartition("/")[2] for r in [*self.routes.values()]}

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        """Status and document."""
        if self.refusals:
            status, reason = self.refusals.pop(0)
            return _error(status, reason)
        self.calls[f"{method} {path}"] += 1
        route = f"{method} {path} {body['destRange']}" if body else ""
        if fault := self.faults.get(f"{method} {path}") or self.faults.get(route):
            return _error(*fault)
        if (method, path) == ("GET", "/aggregated/instances"):
            return 200, {"items": {"zones/z1": {"instances": list(self.instances.values())}, "zones/z2": {}}}
        if (method, path) == ("GET", "/global/routes"):
            first = int(query.get("pageToken", ["0"])[0])
            rows = list(self.routes.values())
            more = {"nextPageToken": str(first + self.page)} if len(rows) > first + self.page else {}
            return 200, {"items": rows[first : first + self.page], **more}
        if (method, path) == ("POST", "/global/routes"):
            return self._insert(body)
        if method == "DELETE" and (name := path.removeprefix("/global/routes/")) in self.routes:
            del self.routes[name]
            return self._operation()
        if method == "POST" and (found := re.fullmatch(r"/global/operations/([\w-]+)/wait", path)):
            self.hold.wait()
            return 200, {"name": found[1], "status": "DONE", **self.operations.pop(found[1])}
        return _error(404, "notFound")

    def _insert(self, body: Any) -> tuple[int, Any]:
        if set(body) != _FIELDS or not _NAME.fullmatch(body["name"]) or body["tags"] != []:
            return _error(400, "invalid")
        if body["name"] in self.routes:
            return _error(409, "alreadyExists")
        if body["nextHopInstance"].rpartition("/")[2] not in self.instances:
            return _error(404, "notFound")
        if fault := self.faults.get("operation"):
            return self._operation(error={"errors": [{"code": fault[1], "message": f"Google says {fault[1]}"}]})
        link = f"{_LINK}/{body['nextHopInstance'].partition('demo/')[2]}"
        self.routes[body["name"]] = {**body, "network": f"{_LINK}/global/networks/default", "nextHopInstance": link}
        return self._operation()

    def _operation(self, **result: Any) -> tuple[int, Any]:
        name = f"operation-{self.calls.total()}"
        self.operations[name] = result
        return 200, {"name": name, "status": "PENDING"}


def _error(status: int, reason: str) -> tuple[int, Any]:
    message = f"as Google says it, {reason}"
    return status, {"error": {"code": status, "message": message, "errors": [{"message": message, "reason": reason}]}}


@contextmanager
def google() -> Iterator[Project]:
    """A project, and the metadata service of an instance in it, at one URL."""
    project = Project()
    project.hold.set()

    class Answers(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if parts.path.startswith(_BASE):
                if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                    self._answer(*_error(401, "required"))
                else:
                    path = parts.path.removeprefix(_BASE)
                    self._answer(*project.answer(self.command, path, parse_qs(parts.query), body))
            elif self.headers.get("Metadata-Flavor") != "Google":
                self._answer(403, "no Metadata-Flavor")
            else:
                self._answer(200 if parts.path in {"/", *_VALUES} else 404, _VALUES.get(parts.path, ""))

        do_GET = do_POST = do_DELETE = _handle  # noqa: N815 - the names of the library

        def _answer(self, status: int, document: Any) -> None:
            text = document if isinstance(document, str) else json.dumps(document)
            self.send_response(status)
            self.send_header("Metadata-Flavor", "Google")
            is_json = not isinstance(document, str) or text.startswith("{")
            self.send_header("Content-Type", "application/json" if is_json else "application/text")
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    with serving(Answers) as url:
        project.url = url
        try:
            yield project
        finally:
            project.hold.set()


def environment(project: Project) -> dict[str, str]:
    """What the process is started with on an instance of the project."""
    host = project.url.removeprefix("http://")
    return {"GCE_METADATA_HOST": host, "GCE_METADATA_IP": host, "NO_PROXY": "127.0.0.1"}
