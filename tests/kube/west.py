"""Another cluster, of one host beside the nodes: this tree's services as processes, and a pod."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Never

from lab import look, topology
from lab.build import CommandFailed, carry_out, make_pod, make_router
from lab.cluster import Pod, read_subnet_file
from lab.kubernetes.node import run
from lab.options import Options
from lab.programs import Program, host_services, subnet_file
from lab.supervise import Supervised
from lab.topology import Batch, Host
from tests.patience import PATIENCE

NETWORK: Final = "10.245.0.0/16"
PORT: Final = 7070
HOST: Final = Host(9)
"""No node has this number."""


class West:
    """Its lease service has a store of its own, and an authority in `tls`."""

    def __init__(self, directory: Path, group: asyncio.TaskGroup) -> None:
        self.tls = directory / "tls"
        self._directory = directory
        self._group = group
        self._services: dict[str, Supervised] = {}
        self._tasks: list[asyncio.Task[Never]] = []

    @property
    def address(self) -> str:
        """Where the lease service listens for other clusters."""
        return f"{HOST.address}:{PORT}"

    async def start(self, imports: str) -> None:
        """Starts the lease service, which imports that; returns when it is ready."""
        home = self._directory / "lease"
        home.mkdir()
        (home / "net-conf.json").write_text(f'{{"Network": "{NETWORK}", "Backend": {{"Type": "vxlan"}}}}')
        flags = (
            f"--socket-dir={home}",
            f"--store-file={home / 'leases.db'}",
            f"--net-config-path={home / 'net-conf.json'}",
            f"--listen=unix:{home / 'lease.sock'},{self.address}",
            f"--tls-cert-file={self.tls / 'lease-server.crt'}",
            f"--tls-key-file={self.tls / 'lease-server.key'}",
            f"--tls-ca-file={self.tls / 'ca.crt'}",
            f"--import={imports}",
        )
        command = (sys.executable, "-m", "flannelette.services.lease.main", "--store=embedded", *flags)
        await self._start(Program("lease", "", HOST.namespace, command, home))

    async def start_pod(self, peers: int) -> Pod:
        """Starts dataplane and masq; the pod, once so many peers are programmed."""
        for program in host_services(Options(nodes=1), HOST, self._directory):
            await self._start(program)
        async with asyncio.timeout(PATIENCE):
            await look.until_programmed(self._services["dataplane"].program.address, peers)
        gateways, mtu = read_subnet_file(subnet_file(HOST, self._directory))
        await make_pod(HOST, gateways, mtu)
        return Pod(HOST, topology.pod_address(gateways[0]))

    async def kill(self, name: str) -> None:
        """Kills one of its services; returns when the next one is ready."""
        service = self._services[name]
        await service.kill()
        async with asyncio.timeout(PATIENCE):
            await look.until_serving(service.program.address)

    async def stop(self) -> None:
        """Ends its processes."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _start(self, program: Program) -> None:
        service = self._services[program.name] = Supervised(program, lambda *_: None)
        self._tasks.append(self._group.create_task(service.run()))
        try:
            async with asyncio.timeout(PATIENCE):
                await look.until_serving(program.address)
        except TimeoutError:
            raise AssertionError(service.tail(40)) from None


@asynccontextmanager
async def west() -> AsyncIterator[West]:
    """On the wire of the nodes; nothing is left of it."""
    with TemporaryDirectory(prefix="fl-west-") as name:
        async with asyncio.TaskGroup() as group:
            made = West(Path(name), group)
            try:
                await _plug()
                yield made
            finally:
                await made.stop()
                await _unplug()


async def _plug() -> None:
    wire = f"link add {HOST.name} type veth peer name eth0 netns {HOST.name}"
    spaces = (f"netns add {HOST.name}", f"netns add {HOST.pod.name}")
    await carry_out([Batch("", (*spaces, wire, f"link set {HOST.name} master underlay up"))])
    await carry_out(topology.addresses(HOST, (4,)))
    await make_router(HOST)


async def _unplug() -> None:
    for command in (f"link delete {HOST.name}", f"netns delete {HOST.name}", f"netns delete {HOST.pod.name}"):
        with suppress(CommandFailed):  # it was not made
            await run("ip", *command.split())
