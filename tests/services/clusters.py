"""Two clusters: lease services as processes, each with its own store, or one whose answers a test chooses."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1 import lease_pb2_grpc
from flannelette.services.core.leases.lease import Lease
from flannelette.services.core.leases.table import Step, StoreStatus, Upserted
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.lease.wire import step_to_proto
from tests.services.lease import ServiceProcess, stub_of
from tests.waiting import eventually

WEST = '{"Network":"10.6.0.0/16","Backend":{"Type":"vxlan"}}'
EAST = '{"Network":"10.5.0.0/16","Backend":{"Type":"vxlan"}}'


class Cluster:
    """The lease service of one cluster."""

    def __init__(self, directory: Path, name: str, network: str) -> None:
        self.name = name
        self.directory = directory / name
        self.directory.mkdir()
        self.config = self.directory / "net.json"
        self.config.write_text(network)
        self.store = "leases.db"
        self.service: ServiceProcess | None = None

    @property
    def address(self) -> str:
        return f"unix:{self.directory}/lease.sock"

    @property
    def running(self) -> ServiceProcess:
        assert self.service is not None
        return self.service

    def start(self, *flags: str) -> None:
        store = (f"--net-config-path={self.config}", f"--store-file={self.directory / self.store}")
        self.service = ServiceProcess(self.directory, *store, "--guard-seconds=1", *flags)

    def imports(self, *allow: str) -> str:
        """The flag of another cluster."""
        return f"--import={self.name}={self.address}" + "".join(f",allow={cidr}" for cidr in allow)

    async def status(self) -> pb.GetStatusResponse:
        async with stub_of(self.address) as stub:
            return await stub.GetStatus(pb.GetStatusRequest())

    async def until_imported(self, holds: Callable[[pb.ImportedCluster], bool]) -> pb.ImportedCluster:
        """The state of the first import, once it is so."""
        status = await eventually(self.status, lambda status: status.imports and holds(status.imports[0]))
        return status.imports[0]

    async def until_found(self, check: str) -> Sequence[pb.Finding]:
        """The findings, once one of this check is among them."""
        status = await eventually(self.status, lambda status: check in [each.check for each in status.findings])
        return status.findings

    def stop(self) -> None:
        if self.service is not None:
            self.service.__exit__(None, None, None)


class Exporter(lease_pb2_grpc.LeaseServiceServicer):
    """A cluster as far as an importer sees it: `tell` tells `leases` as a new snapshot.

    Silent: it takes a stream, and says nothing.
    """

    def __init__(self, path: Path, network: NetworkConfig, *leases: Lease) -> None:
        self.address = f"unix:{path}"
        self.network = network
        self.leases = list(leases)
        self.is_silent = False
        self.has_store = True
        self.streams = 0
        self._news = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        """Serves, until `stop`."""
        self._server = grpc.aio.server()
        lease_pb2_grpc.add_LeaseServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(self.address)
        await self._server.start()

    async def stop(self) -> None:
        """Ends every stream."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    def tell(self) -> None:
        """What is set by now."""
        self._news.set()
        self._news = asyncio.Event()

    async def WatchLeases(  # noqa: N802 - gRPC's name
        self, request: pb.WatchLeasesRequest, context: Any
    ) -> AsyncIterator[pb.WatchLeasesResponse]:
        """VIEW_EXPORTED."""
        self.streams += 1
        while True:
            news = self._news
            if not self.is_silent:
                yield step_to_proto(self._step())
            await news.wait()

    def _step(self) -> Step:
        if not self.has_store:
            return Step(store=StoreStatus("etcd", False, "no member answers"))
        leases = tuple(map(Upserted, self.leases))
        return Step(reset=True, changes=leases, network=self.network, store=StoreStatus("etcd", True), synced=True)
