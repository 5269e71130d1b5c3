"""The calls of the Kubernetes API that we need, on values of ours. Only this module knows `kubernetes` and `aiohttp`.

Of the client (its async half) we use configuration and authentication; not its models and generated calls, which cost
ten times the time and memory, not its Watch, which never advances the resourceVersion, and not its transport, which
imports pydantic for 6 MB and hands on to aiohttp what we hand on here. Every call raises Unavailable, in a sentence,
when there is no good answer in time.
"""

import asyncio
import json
import os
import socket
import ssl
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from flannelette.services.core.errors import Misconfigured, NotYet, Unavailable
from flannelette.services.lease.stores.kube.values import (
    UNAUTHORIZED,
    WRITE_EVENT,
    Access,
    Annotations,
    Busy,
    Gone,
    KubeSettings,
    Lines,
    Node,
    Silent,
    Timing,
    TooLarge,
    WatchBatch,
    away,
    broken,
    find_access,
    read_batch,
    read_page,
    refusal,
)
from flannelette.services.runtime.backoff import jittered
from flannelette.services.runtime.os.partial_import import partial_import
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

_PACKAGES: Final = ("kubernetes", "kubernetes.aio", "kubernetes.aio.client")
"""Packages of the client; they import its synchronous half and all of its models: 14 MB."""

try:
    import aiohttp

    with ExitStack() as _stack:
        for _package in _PACKAGES:
            _stack.enter_context(partial_import(_package))
        from kubernetes.aio.client.configuration import Configuration
except ModuleNotFoundError as error:
    raise Misconfigured(
        f"the Kubernetes store needs the package {str(error.name).partition('.')[0]}, which is not installed: "
        "pip install 'flannelette[kubernetes]'"
    ) from None

PAGE: Final = 50
"""Nodes in a page: 700 KB of JSON, 4 MB as Python objects, and some 10 ms in which nothing else runs."""
_MOST_NODES: Final = 1_000_000
"""Largest number of Nodes in a listing."""
_LARGEST: Final = 32 << 20
"""Largest size of an answer in bytes, unpacked: etcd, and so Kubernetes, refuses objects of more than 1.5 MB."""
_LONGEST_REFUSAL: Final = 1 << 16
_NODES: Final = "/api/v1/nodes"
_EVENTS: Final = "/api/v1/namespaces/default/events"
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_KEEPALIVE: Final = ((socket.TCP_KEEPIDLE, 15), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))
"""An idle watch notices after 30 s that the machine at the other end is gone."""


class KubeClient:
    """One API server. Construction opens nothing; close() when done.

    Credentials are read again when the server does not know us, and a service account's token whenever it changes.
    `keys` are our annotations, `agent` is what the server's audit log shows.
    """

    def __init__(self, access: Access, timing: Timing, keys: Annotations, agent: str) -> None:
        self._access = access
        self._timing = timing
        self._keys = keys
        self._agent = agent
        self._session: aiohttp.ClientSession | None = None
        self._configuration = Configuration()
        """Configuration that the session was opened with."""
        self._opening = asyncio.Lock()

    async def list_nodes(self, selector: str = "") -> tuple[tuple[Node, ...], str]:
        """All nodes at one resourceVersion, which is as new as can be. Raises Expired: it took too long."""
        nodes: list[Node] = []
        query: dict[str, str] = {"limit": str(PAGE)} | _selection(selector)
        while True:
            asked = query.get("continue")
            try:
                document = await self._document("list nodes", _NODES, query, self._timing.page)
            except TooLarge:
                if query["limit"] == "1":
                    raise
                query["limit"] = "1" if query["limit"] != str(PAGE) else str(PAGE // 10)
                continue
            try:
                page, position, query["continue"] = read_page(document, self._keys)
            except ValueError as error:
                raise broken(self._access.name, error) from None
            nodes += page
            if len(nodes) > _MOST_NODES or query["continue"] == asked:
                raise broken(self._access.name, ValueError("a listing that does not end"))
            if not query["continue"]:
                return tuple(nodes), position

    async def watch_nodes(self, position: str, selector: str = "") -> AsyncGenerator[WatchBatch, None]:
        """What happens to nodes after a position; first an empty batch: the watch is open.

        Ends when the server ends it, as it does every few minutes. Raises Expired when there is no going on from
        there, Silent when nothing comes for a while, Unavailable when it fails.
        """
        seconds = self._timing.watch
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": position,
            "timeoutSeconds": str(int(jittered(2 * seconds)) or 1),
        }
        silence = self._timing.silence_alone if selector else self._timing.silence
        timeout = self._timeout(None, silence)
        async with self._request("watch nodes", "GET", _NODES, query | _selection(selector), timeout) as response:
            if "Content-Encoding" in response.headers:
                raise broken(self._access.name, ValueError("a watch that is compressed"))
            yield WatchBatch((), position)
            lines = Lines()
            while chunk := await _read(response):
                try:
                    batch = read_batch(lines.feed(chunk), self._keys, self._access.name)
                except ValueError as error:
                    raise broken(self._access.name, error) from None
                if batch is not None:
                    yield batch
            if lines.rest:
                raise broken(self._access.name, ValueError("a watch that ends in the middle of a line"))

    async def read_node(self, name: str) -> dict[str, Any]:
        """The Node object as it is now, whole. Raises NotYet if there is none."""
        try:
            return await self._document("read the node", f"{_NODES}/{name}")
        except Gone:
            raise _no_node(name) from None

    async def patch_node(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merges this into the Node object through its status subresource; returns what it is now.

        Tries again every 3 s for half a minute, as flannel does. A patch whose answer is lost may have happened; done
        twice it changes nothing more. Raises NotYet if there is no such Node.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timing.patch_total
        while True:
            try:
                return await self._send("write to the node", "PATCH", f"{_NODES}/{name}/status", patch)
            except Gone:
                raise _no_node(name) from None
            except Unavailable as error:
                pause = max(self._timing.patch_pause, error.seconds if isinstance(error, Busy) else 0)
                if loop.time() + pause >= deadline:
                    raise
                log.warning("cannot write to the node; trying again", node=name, reason=str(error), seconds=pause)
                await asyncio.sleep(pause)

    async def make_event(self, event: Mapping[str, Any]) -> dict[str, Any]:
        """Creates an Event (of a Node, whose Events are in the namespace default); returns it."""
        return await self._send(WRITE_EVENT, "POST", _EVENTS, event)

    async def patch_event(self, name: str, patch: Mapping[str, Any]) -> dict[str, Any]:
        """Merges this into an Event; returns what it is now. Raises Gone."""
        return await self._send(WRITE_EVENT, "PATCH", f"{_EVENTS}/{name}", patch)

    async def node_of_pod(self, namespace: str, pod: str) -> str:
        """The node that a pod runs on. Raises Gone."""
        document = await self._document("read our pod", f"/api/v1/namespaces/{namespace}/pods/{pod}")
        name = document.get("spec", {}).get("nodeName")
        if not isinstance(name, str) or not name:
            raise Gone(f"pod {namespace}/{pod} is on no node")
        return name

    async def close(self) -> None:
        """Closes the session, which ends open calls."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _document(
        self, what: str, path: str, query: Mapping[str, str] = MappingProxyType({}), seconds: float = 0.0
    ) -> dict[str, Any]:
        timeout = self._timeout(seconds or self._timing.call)
        async with self._request(what, "GET", path, query, timeout) as response:
            return await self._object(response)

    async def _send(self, what: str, method: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        timeout = self._timeout(self._timing.call)
        headers = {"Content-Type": _STRATEGIC if method == "PATCH" else "application/json"}
        async with self._request(what, method, path, {}, timeout, headers, body) as response:
            return await self._object(response)

    async def _object(self, response: aiohttp.ClientResponse) -> dict[str, Any]:
        try:
            document = json.loads(await _body(response, _LARGEST))
        except _Longer as error:
            raise TooLarge(str(broken(self._access.name, error))) from None
        except (ValueError, RecursionError) as error:
            raise broken(self._access.name, error) from None
        if not isinstance(document, dict):
            raise broken(self._access.name, ValueError("no JSON object"))
        return document

    def _timeout(self, total: float | None, silence: float | None = None) -> aiohttp.ClientTimeout:
        return aiohttp.ClientTimeout(total=total, sock_connect=self._timing.connect, sock_read=silence)

    @asynccontextmanager
    async def _request(
        self,
        what: str,
        method: str,
        path: str,
        query: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        headers: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """The answer, if it is a success; what goes wrong while it is read is Unavailable too."""
        try:
            session = await self._open()
            configuration = self._configuration
            auth = await configuration.auth_settings()
            async with asyncio.timeout(timeout.total or self._timing.call):
                response = await session.request(
                    method,
                    f"{configuration.host}{path}",
                    params=query,
                    json=body,
                    headers={**(headers or {}), **{each["key"]: each["value"] or "" for each in auth.values()}},
                    timeout=timeout,
                    proxy=configuration.proxy or None,
                    proxy_headers=configuration.proxy_headers or None,
                    allow_redirects=False,  # an API server sends none, and our token is for it alone
                    server_hostname=configuration.tls_server_name or None,
                )
            async with response:
                if not 200 <= response.status < 300:
                    if response.status == UNAUTHORIZED:
                        await self.close()
                    retry_after = response.headers.get("Retry-After", "")
                    try:
                        text = await _body(response, _LONGEST_REFUSAL)
                    except ValueError as error:
                        text = str(error).encode()
                    raise refusal(self._access.name, what, response.status, text, retry_after)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if isinstance(error, aiohttp.ClientSSLError):
                await self.close()
            raise away(self._access.name, error) from None

    async def _open(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._session is None:
                self._configuration = await _configuration(self._access)
                connector = aiohttp.TCPConnector(ssl=_ssl_context(self._configuration), socket_factory=_make_socket)
                headers = {"Accept": "application/json", "Accept-Encoding": "gzip", "User-Agent": self._agent}
                self._session = aiohttp.ClientSession(
                    connector=connector, headers=headers, trust_env=True, auto_decompress=False
                )
            return self._session


async def node_of_our_pod(
    settings: KubeSettings,
    environment: Mapping[str, str] = os.environ,
    *,
    timing: Timing | None = None,
    access: Access | None = None,
) -> str:
    """The node of the pod POD_NAMESPACE/POD_NAME; empty where NODE_NAME is set, or these are not.

    Asks every 3 s for half a minute. Raises Misconfigured if there is no such pod, Unavailable.
    """
    namespace, pod = environment.get("POD_NAMESPACE", ""), environment.get("POD_NAME", "")
    if environment.get("NODE_NAME") or not (namespace and pod):
        return ""
    timing = timing or Timing()
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timing.patch_total
    client = KubeClient(access or find_access(settings), timing, settings.annotations, "flannelette-lease")
    try:
        while True:
            try:
                return await client.node_of_pod(namespace, pod)
            except Gone as error:
                raise Misconfigured(
                    f"cannot tell the node from POD_NAMESPACE={namespace} and POD_NAME={pod} ({error}): correct "
                    "them, or set NODE_NAME"
                ) from None
            except Unavailable:
                if loop.time() + timing.patch_pause >= deadline:
                    raise
                await asyncio.sleep(timing.patch_pause)
    finally:
        await client.close()


def _no_node(name: str) -> NotYet:
    return NotYet(
        f"there is no node {name} in Kubernetes: wait for its kubelet to register it, or correct --node (NODE_NAME)"
    )


class _Longer(ValueError):
    """An answer is larger than we take."""


async def _body(response: aiohttp.ClientResponse, most: int) -> bytes:
    """The whole answer, unpacked. Raises ValueError; _Longer as soon as it has more than `most` bytes."""
    coding = response.headers.get("Content-Encoding", "identity").lower()
    if coding not in ("identity", "gzip"):
        raise ValueError(f"an answer in Content-Encoding {coding!r:.40}")
    gzip, parts, size = zlib.decompressobj(wbits=31) if coding == "gzip" else None, list[bytes](), 0
    while chunk := await response.content.readany():
        try:
            part = gzip.decompress(chunk, most + 1 - size) if gzip else chunk
        except zlib.error as error:
            raise ValueError(f"gzip that cannot be unpacked: {error}") from None
        parts.append(part)
        size += len(part)
        if size > most:
            raise _Longer(f"an answer of more than {most} bytes")
    if gzip and not gzip.eof:
        raise ValueError("an answer that ends too early")
    return b"".join(parts)


async def _read(response: aiohttp.ClientResponse) -> bytes:
    """What comes next; empty at the end. Raises Silent."""
    try:
        return await response.content.readany()
    except aiohttp.SocketTimeoutError:
        raise Silent(f"nothing comes from {response.url.host}") from None


def _make_socket(address: Any) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _KEEPALIVE:
        made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _configuration(access: Access) -> Configuration:
    """Reads the files as they are now. Raises Unavailable, because they may be corrected while the process runs."""
    configuration = Configuration()
    if access.kubeconfig:
        from kubernetes.aio.config import ConfigException, load_kube_config  # the rest of the client

        try:
            await load_kube_config(access.kubeconfig, client_configuration=configuration, persist_config=False)
        except (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise Unavailable(f"the kubeconfig {access.kubeconfig} cannot be used: {error}") from None
    if access.url:
        configuration.host = access.url
    if access.ca_file:
        configuration.ssl_ca_cert = access.ca_file
    if access.token_file:
        token = Path(access.token_file)

        def read_token(configuration: Configuration) -> None:
            configuration.api_key["BearerToken"] = f"Bearer {token.read_text(encoding='utf-8').strip()}"

        read_token(configuration)
        configuration.refresh_api_key_hook = read_token  # for every request: a projected token lives for an hour
    return configuration


def _ssl_context(configuration: Configuration) -> ssl.SSLContext:
    """Makes the same TLS context as the Kubernetes client."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def _selection(selector: str) -> dict[str, str]:
    return {"fieldSelector": selector} if selector else {}
