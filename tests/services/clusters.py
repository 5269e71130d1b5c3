"""Two clusters that import each other's leases: lease services as processes, each with its own embedded store."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from flannelette.lease.v1 import lease_pb2 as pb

from tests.patience import PATIENCE
from tests.services.lease import ServiceProcess, stub_of

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
        async with asyncio.timeout(PATIENCE):
            while not (imports := (await self.status()).imports) or not holds(imports[0]):  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.05)
        return imports[0]

    async def until_found(self, check: str) -> Sequence[pb.Finding]:
        """The findings, once one of this check is among them."""
        async with asyncio.timeout(PATIENCE):
            while True:
                findings = (await self.status()).findings
                if any(finding.check == check for finding in findings):
                    return findings
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        if self.service is not None:
            self.service.__exit__(None, None, None)
