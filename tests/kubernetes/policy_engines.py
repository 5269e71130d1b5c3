"""kube-network-policies, a real engine of NetworkPolicies, on one host, and an API server for it that a test plays.

The API server is in the network namespace of the host: pods of two nodes, one namespace, and the policy that the test
sets. The engine finds it as in a pod, by variables and the files of a service account.
"""

import asyncio
import json
import ssl
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from tests.hosts.masq import Host
from tests.patience import PATIENCE
from tests.services.certificates import Certificates
from tests.tools import CACHE, lacking

Document = dict[str, Any]
NODE: Final = "n1"
POLICIES: Final = "/apis/networking.k8s.io/v1/networkpolicies"
PODS: Final = "/api/v1/pods"
NAMESPACES: Final = "/api/v1/namespaces"
_KINDS: Final = {POLICIES: "NetworkPolicy", PODS: "Pod", NAMESPACES: "Namespace"}
_IN_A_POD: Final = (
    "mount -t tmpfs tmpfs /run && at=/run/secrets/kubernetes.io/serviceaccount && "
    'mkdir -p $at && cp "$0"/* $at && exec "$@"'
)
"""Where a client in a pod finds its certificates, in a mount namespace of its own."""
_PORT: Final = 6443
_QUEUES: Final = "/proc/net/netfilter/nfnetlink_queue"
_COPY_MODE: Final = 3
"""The column that says 2 when a process gets packets."""
_PROGRAM: Final = CACHE / "bin" / "kube-network-policies"


def _group_of(path: str) -> str:
    return path.removeprefix("/apis/").removeprefix("/api/").rpartition("/")[0]


@dataclass
class PlayedApi:
    """Lists and watches, in JSON. Objects are by path and name."""

    _objects: dict[str, dict[str, Document]] = field(default_factory=lambda: {path: {} for path in _KINDS})
    _events: list[tuple[int, str, Document]] = field(default_factory=list)
    """What was changed, by version."""
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def put(self, path: str, name: str, document: Mapping[str, Any]) -> None:
        """A new object."""
        made = {"kind": _KINDS[path], "apiVersion": _group_of(path), **document}
        namespace = {} if path == NAMESPACES else {"namespace": "default"}
        made["metadata"] = {
            **namespace,
            **document.get("metadata", {}),
            "name": name,
            "uid": f"{path}/{name}",
            "resourceVersion": str(len(self._events) + 1),
        }
        self._objects[path][name] = made
        await self._tell(path, "ADDED", made)

    async def remove(self, path: str, name: str) -> None:
        """An object goes, if there is one."""
        if made := self._objects[path].pop(name, None):
            made["metadata"]["resourceVersion"] = str(len(self._events) + 1)
            await self._tell(path, "DELETED", made)

    async def _tell(self, path: str, kind: str, made: Document) -> None:
        async with self._changed:
            self._events.append((len(self._events) + 1, path, {"type": kind, "object": made}))
            self._changed.notify_all()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """A list, or a watch from a version on; nothing else is there."""
        if request.method != "GET" or request.path not in _KINDS:
            gone = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
            return web.json_response(gone, status=404)
        if request.query.get("watch") in ("1", "true"):
            return await self._watch(request)
        found = list(self._objects[request.path].values())
        kind = {"kind": f"{_KINDS[request.path]}List", "apiVersion": _group_of(request.path)}
        return web.json_response({**kind, "metadata": {"resourceVersion": str(len(self._events))}, "items": found})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        said = int(request.query.get("resourceVersion") or 0)
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        while True:
            async with self._changed:
                while len(self._events) <= said:
                    await self._changed.wait()
            for version, path, event in self._events[said:]:
                said = version
                if path == request.path:
                    await response.write(json.dumps(event).encode() + b"\n")


@asynccontextmanager
async def serving(host: Host, directory: Path) -> AsyncIterator[tuple[PlayedApi, Path]]:
    """An API server on the host, and the files of a service account."""
    files = Certificates(directory / "authority").server()
    account = directory / "account"
    account.mkdir()
    (account / "token").write_text("token")
    (account / "ca.crt").write_bytes(files.authorities.read_bytes())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.certificate, files.key)
    api = PlayedApi()
    application = web.Application()
    application.router.add_route("*", "/{path:.*}", api.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    try:
        with host.netns.inside():
            await web.TCPSite(runner, "127.0.0.1", _PORT, ssl_context=context).start()
        yield api, account
    finally:
        await runner.cleanup()


class Engine:
    """The process on the host; its rules stay when it is killed."""

    def __init__(self, host: Host, account: Path) -> None:
        """Skips the test where there is no kube-network-policies."""
        if not _PROGRAM.exists():
            lacking(f"there is no {_PROGRAM.name}: `make vm-test` builds it, where Go is")
        self._host = host
        inside = ("unshare", "--mount", "sh", "-c", _IN_A_POD, str(account))
        self._command = (*inside, str(_PROGRAM), f"--hostname-override={NODE}")
        self._log = account.parent / "engine.log"
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Starts it, while no flow begins; returns when it takes packets from its queue.

        kube-network-policies 0.8.0 takes a packet that arrives while it configures the queue for a wrong answer of
        the kernel. Then it deletes its rules and goes on running.
        """
        self._process = self._run()
        try:
            async with asyncio.timeout(PATIENCE):
                while not self._is_listening():  # noqa: ASYNC110 - another process decides
                    await asyncio.sleep(0.1)
        except TimeoutError:
            raise AssertionError(f"the engine does not start:\n{self.end_of_log}") from None

    def kill(self) -> None:
        """As the kernel kills a process for its memory."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)
            self._process = None

    @property
    def end_of_log(self) -> str:
        """What it has said last."""
        return self._log.read_text(errors="replace")[-3000:] if self._log.exists() else ""

    def _run(self) -> "subprocess.Popen[bytes]":
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(_PORT)}
        command = self._host.netns.command(*self._command)
        with self._log.open("ab") as log:
            return subprocess.Popen(command, env=self._host.environment | environment, stdout=log, stderr=log)

    def _is_listening(self) -> bool:
        read = self._host.run("sh", "-c", f"cat {_QUEUES} || true")  # the engine's first question loads the module
        queues = [line.split() for line in read.splitlines()]
        return [queue[_COPY_MODE] for queue in queues] == ["2"]
