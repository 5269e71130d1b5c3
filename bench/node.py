"""One node as in production: a lease service and a dataplane, two processes, on a host of a bench's own."""

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bench.process import cpu_seconds, running
from bench.result import BenchFailed
from lab.netns import NetworkNamespace

_NODE = "bench"
_PATIENCE = 120.0
_IMPATIENT = (("grpc.initial_reconnect_backoff_ms", 20), ("grpc.max_reconnect_backoff_ms", 20))
"""So that it is there as soon as the server is."""

_TOKENS: Final = list[bytes]()
"""The file by which a dataplane shows that it is the machine of before, once there is one: else a new node of the
same name is refused for a minute."""


@dataclass
class Node:
    """The processes that were started, and when."""

    namespace: NetworkNamespace
    endpoint: str
    directory: Path
    processes: ExitStack
    started_at: float = 0.0
    """time.monotonic() before the first exec."""
    running: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    """Processes by their service: `lease` and `dataplane`."""

    def start(self) -> None:
        """Both, one right after the other."""
        self.started_at = time.monotonic()
        self.start_lease()
        self.start_dataplane()

    def start_lease(self) -> None:
        self._start("lease", "--store=etcd", f"--etcd-endpoints={self.endpoint}")

    def start_dataplane(self, *flags: str) -> None:
        with self.namespace.inside():
            places = (f"--subnet-file={self.directory}/subnet.env", f"--state-dir={self.directory}/state")
            self._start("dataplane", "--iface=eth0", *places, *flags)

    def _start(self, name: str, *flags: str) -> None:
        log = self.directory / f"{name}.log"
        shared = (f"--node={_NODE}", f"--socket-dir={self.directory}")
        process = running(sys.executable, "-m", f"flannelette.services.{name}.main", *shared, *flags, log=log)
        self.running[name] = self.processes.enter_context(process)

    async def until_ready(self) -> float:
        """When the dataplane said that everything is programmed; time.monotonic(). Raises BenchFailed."""
        async with grpc.aio.insecure_channel(f"unix:{self.directory}/dataplane.sock", options=_IMPATIENT) as channel:
            stub, question = health_pb2_grpc.HealthStub(channel), health_pb2.HealthCheckRequest()
            deadline = time.monotonic() + _PATIENCE
            while (left := deadline - time.monotonic()) > 0:
                # A new channel can get the connection that a closed one had to a process that was killed.
                with suppress(grpc.aio.AioRpcError):
                    async for answer in stub.Watch(question, wait_for_ready=True, timeout=left):
                        if answer.status == health_pb2.HealthCheckResponse.SERVING:
                            return time.monotonic()
        raise BenchFailed(f"the dataplane did not get ready: {self.log()}")

    def cpu(self) -> dict[str, float]:
        """Returns the CPU seconds of each process."""
        return {name: cpu_seconds(process) for name, process in self.running.items()}

    @property
    def logs(self) -> "dict[Path, subprocess.Popen[bytes]]":
        """The running processes, by the files that they print to."""
        return {self.directory / f"{name}.log": process for name, process in self.running.items()}

    def log(self) -> str:
        """The last lines that both printed."""
        return "\n".join((self.directory / f"{name}.log").read_text()[-600:] for name in ("lease", "dataplane"))


@contextmanager
def node_on(namespace: NetworkNamespace, endpoint: str) -> Iterator[Node]:
    """Prepares a node, of which nothing runs yet, for a block."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as processes:
        token = Path(directory, "state", "machine")
        token.parent.mkdir(mode=0o700)
        if _TOKENS:
            token.write_bytes(_TOKENS[0])
            token.chmod(0o600)
        yield Node(namespace, endpoint, Path(directory), processes)
        if token.exists():
            _TOKENS[:] = [token.read_bytes()]
