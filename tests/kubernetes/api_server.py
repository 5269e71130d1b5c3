"""A real kube-apiserver for tests, over a real etcd: started on loopback, gone when the tests are.

`kube` is one for a folder; every test makes nodes with names and podCIDRs of its own, and leaves none behind.
There is no kubelet and no controller: a Node is what the test makes it. The program comes from `make test`
(lab/tools.sh kube-apiserver), which needs a recent Go; without it these tests are skipped.
"""

import http.client
import json
import secrets
import ssl
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from flannelette.services.lease.stores.kube.values import Access
from tests.etcd.server import EtcdMaker
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.server_process import ServerProcess
from tests.tools import find_tool

Document = dict[str, Any]


class Refused(Exception):
    """The API server answers, but not with success."""


@dataclass
class ApiServer(ServerProcess):
    """One kube-apiserver process with RBAC; what it holds survives kill() and start()."""

    program = "kube-apiserver"
    etcd: str
    """URL of its etcd."""
    port: int = field(default_factory=free_port)
    admin: str = field(default_factory=lambda: secrets.token_hex(8))
    """A token that may do everything."""
    nobody: str = field(default_factory=lambda: secrets.token_hex(8))
    """A token that may do nothing."""
    arguments: Sequence[str] = ()

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        """It signs its own certificate."""
        return self.directory / "apiserver.crt"

    def access(self, token: str = "") -> Access:
        """The way in for a store, as from a service account: a CA and a token in files."""
        path = self.directory / f"token-{secrets.token_hex(4)}"
        path.write_text(token or self.admin)
        return Access(self.url, ca_file=str(self.ca_file), token_file=str(path))

    def rotate(self, access: Access) -> None:
        """Puts the administrator's token into the file of that access, as Kubernetes does with a new one."""
        Path(access.token_file).write_text(f"{self.admin}\n")

    def kubeconfig(self, token: str = "") -> Path:
        """The same as a file for kubectl, and for --kubeconfig-file."""
        path = self.directory / f"kubeconfig-{secrets.token_hex(4)}"
        cluster = {"server": self.url, "certificate-authority": str(self.ca_file)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": {"token": token or self.admin}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(document))  # which is YAML, too
        return path

    def start(self) -> None:
        """Starts it and waits until it is ready."""
        program = find_tool("kube-apiserver")
        keys = self.directory / "service-accounts.pem"
        if not keys.exists():
            key = ec.generate_private_key(ec.SECP256R1())
            keys.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()))
            users = f"{self.admin},admin,1,system:masters\n{self.nobody},nobody,2\n"
            (self.directory / "tokens.csv").write_text(users)
        self.run(
            [
                program,
                f"--etcd-servers={self.etcd}",
                f"--secure-port={self.port}",
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none",
                f"--cert-dir={self.directory}",
                f"--token-auth-file={self.directory / 'tokens.csv'}",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={keys}",
                f"--service-account-signing-key-file={keys}",
                "--disable-admission-plugins=ServiceAccount",  # pods of ours name none
                *self.arguments,
            ]
        )
        self.wait()

    def call(self, method: str, path: str, body: Document | None = None, kind: str = "application/json") -> Document:
        """Asks as the administrator; returns the object, or what came instead as `text`."""
        context = ssl.create_default_context(cafile=str(self.ca_file))
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=PATIENCE, context=context)
        try:
            headers = {"Authorization": f"Bearer {self.admin}", "Content-Type": kind}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            text = response.read().decode()
        finally:
            connection.close()
        if response.status >= 300:
            raise Refused(f"{response.status} {text}")
        document: Document = json.loads(text) if text.startswith("{") else {"text": text}
        return document

    def make_node(self, name: str, *pod_cidrs: str, annotations: dict[str, str] | None = None) -> None:
        """As a kubelet and the controller manager do together."""
        spec: Document = {"podCIDR": pod_cidrs[0], "podCIDRs": list(pod_cidrs)} if pod_cidrs else {}
        metadata = {"name": name, "annotations": annotations or {}}
        self.call("POST", "/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", "metadata": metadata, "spec": spec})

    def assign(self, name: str, *pod_cidrs: str) -> None:
        """What the controller manager does later."""
        patch = {"spec": {"podCIDR": pod_cidrs[0], "podCIDRs": list(pod_cidrs)}}
        self.call("PATCH", f"/api/v1/nodes/{name}", patch, "application/strategic-merge-patch+json")

    def annotate(self, name: str, **annotations: str | None) -> None:
        """As kubectl annotate: names without flannel's prefix, `_` for `-`; None removes one."""
        named = {f"flannel.alpha.coreos.com/{key.replace('_', '-')}": text for key, text in annotations.items()}
        patch = {"metadata": {"annotations": named}}
        self.call("PATCH", f"/api/v1/nodes/{name}", patch, "application/strategic-merge-patch+json")

    def node(self, name: str) -> Document:
        """The Node as it is now."""
        return self.call("GET", f"/api/v1/nodes/{name}")

    def annotations(self, name: str) -> dict[str, str]:
        """Its annotations as they are now."""
        found: dict[str, str] = self.node(name)["metadata"].get("annotations", {})
        return found

    def condition(self, name: str, kind: str = "NetworkUnavailable") -> Document | None:
        """Its condition of this type."""
        conditions = self.node(name)["status"].get("conditions", [])
        return next((condition for condition in conditions if condition["type"] == kind), None)

    def delete_node(self, name: str) -> None:
        self.call("DELETE", f"/api/v1/nodes/{name}")

    def delete_all_nodes(self) -> None:
        self.call("DELETE", "/api/v1/nodes")

    def answers(self) -> bool:
        """Whether it is ready, now."""
        try:
            return self.call("GET", "/readyz") == {"text": "ok"}
        except (OSError, http.client.HTTPException, Refused):
            return False


@contextmanager
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One, with an etcd of its own."""
    find_tool("kube-apiserver")
    with ExitStack() as stack:
        etcd = EtcdMaker(tmp_path_factory.mktemp("etcd"), stack)()
        server = ApiServer(tmp_path_factory.mktemp("kube"), etcd.endpoint)
        stack.callback(server.kill)
        server.start()
        yield server


@pytest.fixture(scope="package")
def shared_kube(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """One for the tests of this worker below the conftest.py that has it; also one with nothing to do computes."""
    with serving(tmp_path_factory) as server:
        yield server


@pytest.fixture
def kube(shared_kube: ApiServer) -> Iterator[ApiServer]:
    """The shared one, without nodes."""
    yield shared_kube
    shared_kube.delete_all_nodes()
