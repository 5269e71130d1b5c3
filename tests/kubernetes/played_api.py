"""An API server that a test plays: it holds nodes, and does on demand what a real one does when it must.

It speaks HTTP/1.1 as kube-apiserver does (pages with `continue`, watches as lines of JSON, Status objects), in this
process. `faults` are what the next requests of a kind are answered with, instead of the truth.
"""

import asyncio
import gzip
import json
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from flannelette.services.lease.stores.kube.values import Access
from tests.patience import PATIENCE

Document = dict[str, Any]
Fault = Callable[[web.Request], Awaitable[web.StreamResponse]]
PREFIX = "flannel.alpha.coreos.com/"


def node(number: int, *, version: int = 1, padding: str = "") -> Document:
    """The Node `n<number>` that flannel runs on; another version has another MAC."""
    return {
        "metadata": {
            "name": f"n{number}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "annotations": {
                f"{PREFIX}kube-subnet-manager": "true",
                f"{PREFIX}backend-type": "vxlan",
                f"{PREFIX}backend-data": f'{{"VNI":1,"VtepMAC":"02:00:00:00:{version % 256:02x}:01"}}',
                f"{PREFIX}public-ip": f"192.168.{number // 250}.{number % 250 + 1}",
            },
        },
        "spec": {"podCIDR": (cidr := f"10.{100 + number // 256}.{number % 256}.0/24"), "podCIDRs": [cidr]},
        "status": {"padding": padding},
    }


def status(code: int, message: str, reason: str = "") -> Document:
    """What Kubernetes says instead of an object."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code,
    }


def answer(code: int, message: str = "", **headers: str) -> Fault:
    """A refusal."""

    async def refuse(request: web.Request) -> web.StreamResponse:
        named = {key.replace("_", "-"): text for key, text in headers.items()}
        return web.json_response(status(code, message), status=code, headers=named)

    return refuse


def text(body: str, code: int = 200) -> Fault:
    """Whatever this is."""

    async def say(request: web.Request) -> web.StreamResponse:
        return web.Response(text=body, status=code, content_type="application/json")

    return say


def endless(*, is_packed: bool = False) -> Fault:
    """An answer that does not end, of spaces in a JSON string; with `is_packed` a thousand times as many as bytes."""

    async def flood(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Type": "application/json"} | ({"Content-Encoding": "gzip"} if is_packed else {})
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        pack = zlib.compressobj(wbits=31)
        part = b" " * (1 << 20)
        await response.write(pack.compress(b'{"kind":"') if is_packed else b'{"kind":"')
        for _ in range(5_800):
            await response.write(pack.compress(part) + pack.flush(zlib.Z_SYNC_FLUSH) if is_packed else part)
            await asyncio.sleep(0)
        return response

    return flood


def packed(body: bytes, coding: str = "gzip") -> Fault:
    """This, compressed."""

    async def say(request: web.Request) -> web.StreamResponse:
        headers = {"Content-Encoding": coding, "Content-Type": "application/json"}
        return web.Response(body=gzip.compress(body) if coding == "gzip" else body, headers=headers)

    return say


def redirect(to: str) -> Fault:
    """The answer is elsewhere."""

    async def send(request: web.Request) -> web.StreamResponse:
        raise web.HTTPTemporaryRedirect(to)

    return send


async def hang(request: web.Request) -> web.StreamResponse:
    """No answer at all."""
    await asyncio.sleep(3600)
    raise AssertionError


async def cut(request: web.Request) -> web.StreamResponse:
    """The connection is cut in the middle of an answer."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"kind":"NodeList","items":[{"metadata":{"na')
    assert request.transport is not None
    request.transport.close()
    return response


class Watch:
    """One open watch, from the server's side."""

    def __init__(self, query: dict[str, str]) -> None:
        self.query = query
        self.lines: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send(self, kind: str, document: Document) -> None:
        self.raw(json.dumps({"type": kind, "object": document}).encode() + b"\n")

    def bookmark(self, version: int) -> None:
        self.send("BOOKMARK", {"kind": "Node", "metadata": {"resourceVersion": str(version)}})

    def raw(self, line: bytes) -> None:
        self.lines.put_nowait(line)

    def end(self) -> None:
        """As the server does after some minutes."""
        self.lines.put_nowait(None)


@dataclass
class ScriptedApi:
    """What it holds, what it was asked, and how it shall answer next."""

    url: str = ""
    nodes: dict[str, Document] = field(default_factory=dict)
    version: int = 1
    """The resourceVersion now."""
    page: int = 0
    """Nodes in a page, whatever was asked for; 0: what was."""
    faults: dict[str, list[Fault]] = field(default_factory=lambda: defaultdict(list))
    """By kind of request: list, continue, watch, get, patch."""
    requests: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    watches: list[Watch] = field(default_factory=list)
    history: list[tuple[int, str, Document]] = field(default_factory=list)
    """What `put` and `delete` did: a watch begins with what is newer than the place that it asks for."""
    compacted: int = 0
    """Older places have expired."""
    _listings: dict[str, tuple[int, list[Document]]] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def access(self) -> Access:
        return Access(self.url)

    def count(self, kind: str) -> int:
        """How often it was asked."""
        return sum(asked == kind for asked, _ in self.requests)

    def put(self, document: Document) -> None:
        """The node is like this now, and every open watch hears of it."""
        name = document["metadata"]["name"]
        kind = "MODIFIED" if name in self.nodes else "ADDED"
        self.nodes[name] = document
        self._record(kind, document)

    def delete(self, name: str) -> None:
        """The node is gone."""
        self._record("DELETED", self.nodes.pop(name))

    def _record(self, kind: str, document: Document) -> None:
        self.version += 1
        document["metadata"]["resourceVersion"] = str(self.version)
        told = json.loads(json.dumps(document))
        self.history.append((self.version, kind, told))
        for watch in self.watches:
            watch.send(kind, told)

    async def watched(self, times: int = 1) -> Watch:
        """The newest watch, once there were so many."""
        async with asyncio.timeout(PATIENCE):
            while len(self.watches) < times:
                self._news.clear()
                await self._news.wait()
        return self.watches[-1]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        kind = {"PATCH": "patch"}.get(request.method, "get")
        if request.path == "/api/v1/nodes":
            kind = "watch" if "watch" in query else "continue" if "continue" in query else "list"
        self.requests.append((kind, query))
        if self.faults[kind]:
            return await self.faults[kind].pop(0)(request)
        if kind == "watch":
            return await self._watch(request, query)
        if kind in ("list", "continue"):
            return self._list(query)
        document = self.nodes.get(request.path.split("/")[4])
        if document is None:
            return web.json_response(status(404, "not found"), status=404)
        if kind == "patch":
            patch = await request.json()
            document["metadata"]["annotations"].update(patch.get("metadata", {}).get("annotations", {}))
        return web.json_response(document)

    def _list(self, query: dict[str, str]) -> web.Response:
        """A page. All pages of a listing are of one moment, whatever happens between them."""
        moment, _, start_text = query.get("continue", "").partition("-")
        if not moment:
            moment, self._listings[str(len(self._listings))] = str(len(self._listings)), self._now()
        version, documents = self._listings[moment]
        start = int(start_text or 0)
        end = start + (self.page or int(query["limit"]))
        metadata: Document = {"resourceVersion": str(version)}
        if end < len(documents):
            metadata["continue"] = f"{moment}-{end}"
        items = documents[start:end]
        return web.json_response({"kind": "NodeList", "apiVersion": "v1", "metadata": metadata, "items": items})

    def _now(self) -> tuple[int, list[Document]]:
        return self.version, json.loads(json.dumps(list(self.nodes.values())))

    async def _watch(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        watch, place = Watch(query), int(query["resourceVersion"])
        if place < self.compacted:
            watch.send("ERROR", status(410, f"too old resource version: {place} ({self.compacted})", "Expired"))
            watch.end()
        for version, kind, document in self.history:
            if version > place:
                watch.send(kind, document)
        self.watches.append(watch)
        self._news.set()
        while (line := await watch.lines.get()) is not None:
            await response.write(line)
        return response


@asynccontextmanager
async def scripted_api(*nodes: Document) -> AsyncIterator[ScriptedApi]:
    """One that serves on loopback, holding these nodes."""
    api = ScriptedApi(nodes={document["metadata"]["name"]: document for document in nodes})
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield api
    finally:
        for watch in api.watches:
            watch.end()
        await runner.cleanup()
