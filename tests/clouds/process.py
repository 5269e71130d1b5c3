"""`flannelette-cloud` as a process beside a lease service, in the environment that has the SDKs (lab/cloud.sh)."""

import asyncio
import json
import os
import signal
import subprocess
import tarfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc.aio

from flannelette.cloud.v1 import cloud_pb2 as pb
from flannelette.cloud.v1 import cloud_pb2_grpc
from flannelette.lease.v1 import lease_pb2
from tests import process_logs
from tests.paths import ROOT
from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of
from tests.tools import cached, lacking
from tests.waiting import eventually

_KEYS: Final = ("AWS_", "ALIBABA_CLOUD_", "TENCENTCLOUD_", "ACCESS_KEY_", "GOOGLE_")


def cloud_python() -> str:
    """The interpreter of that environment; without it the test is skipped."""
    python = cached("cloud/bin/python", "cloud")
    if not cached("cloud/made-for", "cloud").exists():
        lacking("there is no environment with the SDKs of clouds: `make tools` makes it, and says why it cannot")
    return str(python)


def plain_environment(home: Path) -> dict[str, str]:
    """Without a proxy, and without keys of a cloud that whoever runs the tests may have."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(_KEYS) and not name.lower().endswith("_proxy")
    }
    return kept | {"PYTHONPATH": f"{ROOT}:{ROOT}/proto", "HOME": str(home)}


class CloudProcess:
    """The process, and its calls."""

    def __init__(self, directory: Path, environment: Mapping[str, str], *arguments: str) -> None:
        self.directory = directory
        self.log = directory / "cloud.log"
        places = (f"--socket-dir={directory}", f"--state-dir={directory}/cloud-state")
        self.process = process_logs.started(
            [cloud_python(), "-m", "flannelette.services.cloud.main", *places, *arguments],
            self.log,
            cwd=ROOT,
            env=plain_environment(directory) | dict(environment),
        )
        self._channel = grpc.aio.insecure_channel(
            f"unix:{directory}/cloud.sock", options=[("grpc.max_reconnect_backoff_ms", 100)]
        )
        self.stub = cloud_pb2_grpc.CloudServiceStub(self._channel)

    async def status(self) -> pb.GetStatusResponse:
        return await self.stub.GetStatus(pb.GetStatusRequest(), wait_for_ready=True, timeout=PATIENCE)

    async def until(self, condition: Callable[[pb.GetStatusResponse], bool]) -> pb.GetStatusResponse:
        """The status, as soon as it is like that."""
        return await eventually(self.status, condition)

    async def until_routes(self, *nodes: str) -> pb.GetStatusResponse:
        """The status, once exactly these nodes have an active route, and nothing else is to be told."""
        return await self.until(
            lambda status: (
                status.ready
                and sorted(route.node for route in status.routes if route.state == "active" and not route.problem)
                == sorted(nodes)
                and len(status.routes) == len(nodes)
            )
        )

    async def end(self, number: int = signal.SIGTERM) -> int:
        await self._channel.close()
        if self.process.poll() is None:
            self.process.send_signal(number)
        return await asyncio.to_thread(self.process.wait, PATIENCE)


@asynccontextmanager
async def cloud_process(
    directory: Path, environment: Mapping[str, str], *arguments: str
) -> AsyncIterator[CloudProcess]:
    running = CloudProcess(directory, environment, *arguments)
    try:
        yield running
    finally:
        await running.end(signal.SIGKILL)


class Provider:
    """A provider's class in that environment, which makes plans and carries them out as told: see driven.py."""

    def __init__(self, name: str, home: Path, **environment: str) -> None:
        """`name` is the backend's."""
        self.home = home
        self._name = name
        self._process = subprocess.Popen(
            [cloud_python(), str(ROOT / "tests/clouds/driven.py")],
            cwd=ROOT,
            env=plain_environment(home) | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def do(self, leases: Sequence[tuple[str, str]], url: str = "", **command: Any) -> Any:
        """What came of it. The leases are subnets with the addresses of their nodes; `url`: of API and metadata."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        whole = {"backend": self._name, "leases": leases, "endpoint": url, "metadata": url, **command}
        self._process.stdin.write(json.dumps(whole) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


class Leases:
    """A lease service of its own, whose nodes the test plays."""

    def __init__(self, directory: Path, network: str) -> None:
        self.file = directory / "net-conf.json"
        self.file.write_text(network)
        store = (f"--net-config-path={self.file}", f"--store-file={directory}/leases.db")
        self.service = ServiceProcess(directory, *store)
        self.address = self.service.address

    async def join(self, node: str, address: str) -> str:
        """The subnet that the node gets, or keeps, for this address."""
        subnet = lease_pb2.Subnet(public_address=address)
        async with stub_of(self.address) as stub:
            request = lease_pb2.AcquireLeaseRequest(node=node, subnets=[subnet])
            response = await stub.AcquireLease(request, wait_for_ready=True, timeout=PATIENCE)
        return str(response.lease.subnets[0].cidr)

    async def leave(self, node: str, cidr: str) -> None:
        async with stub_of(self.address) as stub:
            request = lease_pb2.ReleaseLeaseRequest(node=node, name=cidr.replace("/", "-"))
            await stub.ReleaseLease(request, timeout=PATIENCE)


def assert_no_secret(directory: Path, *secrets: str, told: str = "") -> None:
    """No log, state, event or dump below the directory, nor what was told, has one of them."""
    own = ("net-conf.json", "leases.db", "lease.table")  # the lease service keeps the configuration
    said = [path.read_bytes() for path in directory.rglob("*") if path.is_file() and not path.name.startswith(own)]
    for archive in directory.rglob("*.tar.gz"):
        with tarfile.open(archive) as opened:
            parts = [opened.extractfile(member) for member in opened if member.isfile()]
            said += [part.read() for part in parts if part is not None]
    whole = told + b"".join(said).decode(errors="replace")
    assert not [each for each in secrets if each in whole]


def tells(*words: str) -> Callable[[pb.GetStatusResponse], bool]:
    """Whether the service is not ready, and says all that."""
    return lambda answer: not answer.ready and all(word in " ".join(answer.reasons) for word in words)


def has(node: str, target: str = "") -> Callable[[pb.GetStatusResponse], bool]:
    """Whether the node has an active route, to this target."""
    return lambda answer: any(
        route.node == node and route.state == "active" and target in route.target for route in answer.routes
    )
