"""The scene of a simulation: its processes, its nodes, and what can be asked of all of them."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from flannelette.services.core.errors import FlanneletteError, Unavailable
from flannelette.services.core.leases.lease import FamilyRequest, LeaseRequest, VxlanData
from flannelette.services.runtime.lease.feed import LeaseConnection
from lab.simulate.options import Options
from lab.simulate.processes import CrowdProcess, Etcd, LeaseService, ProcessFailed, now
from lab.simulate.store import etcd_client, put_network, stored_leases

_NETWORK: Final = '{"Network":"10.0.0.0/8","SubnetLen":24,"Backend":{"Type":"vxlan"}}'
_FIRST_ADDRESS: Final = IPv4Address("172.16.0.1")
_MARKER: Final = "marker"


@dataclass(slots=True)
class SimulatedNode:
    """Where a node of the simulation runs, and what it publishes."""

    name: str
    address: IPv4Address
    crowd: CrowdProcess
    service: LeaseService
    has_kernel: bool

    @property
    def row(self) -> tuple[str, str, str, bool]:
        """The arguments of Crowd.start for this node."""
        return self.name, str(self.address), self.service.address, self.has_kernel


@dataclass(frozen=True, slots=True)
class Told:
    """When the nodes had everything that was written before a moment."""

    seconds: Sequence[float]
    """Seconds after that moment, sorted."""
    missing: Sequence[str]


@dataclass
class Scene:
    """The parts of a running simulation."""

    options: Options
    etcd: Etcd
    tiers: Sequence[Sequence[LeaseService]]
    crowds: Sequence[CrowdProcess]
    began: float
    """When the simulation began, on CLOCK_MONOTONIC."""
    nodes: dict[str, SimulatedNode] = field(default_factory=dict)
    _made: int = 0
    _addresses: int = 0
    _marker: str = ""

    @property
    def leaves(self) -> Sequence[LeaseService]:
        """The lease services that nodes are connected to."""
        return self.tiers[-1]

    @property
    def services(self) -> list[LeaseService]:
        """The lease services of all tiers."""
        return [service for tier in self.tiers for service in tier]

    def processes(self) -> "Iterator[Etcd | LeaseService | CrowdProcess]":
        """All of them, from the store down."""
        yield self.etcd
        yield from self.services
        yield from self.crowds

    def check(self) -> None:
        """Raises ProcessFailed if one has ended by itself."""
        for process in (self.etcd, *self.services):
            process.check()

    def new_address(self) -> IPv4Address:
        """Returns an address that no node has had."""
        self._addresses += 1
        return _FIRST_ADDRESS + self._addresses

    def new_node(self, like: SimulatedNode | None = None) -> SimulatedNode:
        """A node that is not started yet; in the place of another one."""
        self._made += 1
        name, number = _name(self._made), self._made - 1
        if like is not None:
            return SimulatedNode(name, self.new_address(), like.crowd, like.service, like.has_kernel)
        leaves, crowds = len(self.leaves), len(self.crowds)
        in_crowd = number if self.options.per_node else number // leaves
        crowd, service = self.crowds[in_crowd % crowds], self.leaves[number % leaves]
        return SimulatedNode(name, self.new_address(), crowd, service, self.options.has_kernel(self._made))

    async def ask(self, method: str, **arguments: Any) -> list[Any]:
        """The answers of all crowds."""
        return list(await asyncio.gather(*(crowd.call(method, **arguments) for crowd in self.crowds)))

    async def start(self, nodes: Sequence[SimulatedNode]) -> None:
        """Starts nodes, all at once."""
        by_crowd = [(crowd, [n.row for n in nodes if n.crowd is crowd]) for crowd in self.crowds]
        await asyncio.gather(*(crowd.call("start", nodes=rows) for crowd, rows in by_crowd if rows))
        self.nodes.update((node.name, node) for node in nodes)

    async def restart(self, nodes: Sequence[SimulatedNode], over: float = 0.0, *, renumber: bool = False) -> None:
        """Restarts nodes, spread over some seconds; with another address each, if they are renumbered."""
        if renumber:
            for node in nodes:
                node.address = self.new_address()
        by_crowd = [(crowd, [(n.name, str(n.address)) for n in nodes if n.crowd is crowd]) for crowd in self.crowds]
        await asyncio.gather(*(crowd.call("restart", nodes=rows, over=over) for crowd, rows in by_crowd if rows))

    async def replace(self, node: SimulatedNode) -> None:
        """A node gives its lease back and goes; a new one comes, which takes a lease of its own."""
        try:
            async with asyncio.timeout(self.options.patience):
                await node.crowd.call("leave", names=[node.name])
        except TimeoutError:
            raise ProcessFailed(f"{node.name} could not give its lease back") from None
        del self.nodes[node.name]
        new = self.new_node(node)
        if self.options.per_node:
            await new.service.restart(new.name)
        await self.start([new])

    async def stored(self) -> tuple[int, list[str]]:
        """The number of leases in etcd, and those that are none of a node's, the second of one, or the marker."""
        async with etcd_client(self.etcd.endpoint) as client:
            stored = await stored_leases(client)
        owners = dict.fromkeys((*self.nodes, _MARKER), "")
        owners.update((lease.node, name) for name, lease in stored.items() if lease.node in owners)
        strays = [f"{name} of {lease.node}" for name, lease in stored.items() if owners.get(lease.node) != name]
        return len(stored), strays

    async def leased(self) -> list[float]:
        """Waits until every node has a lease; when each had, on CLOCK_MONOTONIC."""
        waits = self.ask("leased")
        try:
            async with asyncio.timeout(self.options.patience):
                return sorted(at for times in await waits for at in times)
        except TimeoutError:
            said = [line for figures in await self.ask("figures") for line in figures["waiting"]]
            raise ProcessFailed(f"nodes have no lease yet: {'; '.join(said[:3])}") from None

    async def told(self, since: float | None = None) -> Told:
        """Writes a lease, and waits until every node has it, and so everything that was written before.

        Counted from `since`, else from before it is written. It is written until it succeeds.
        """
        address = self.new_address()
        if self._marker:
            await self.ask("expect", name=self._marker, address=str(address))
        since = since or now()
        connection = LeaseConnection(self.leaves[-1].address, _MARKER)
        request = LeaseRequest(_MARKER, "vxlan", (FamilyRequest(address, VxlanData(1, "02:00:00:00:00:01")),))
        try:
            async with asyncio.timeout(self.options.patience):
                while True:
                    self.check()
                    try:
                        lease = await connection.acquire(request)
                        break
                    except FlanneletteError:
                        await asyncio.sleep(0.1)
        finally:
            await connection.close()
        if not self._marker:
            self._marker = lease.name
            await self.ask("expect", name=self._marker, address=str(address))
        said = await self.ask("marked", patience=self.options.patience)
        seconds = sorted(at - since for each in said for at in each["times"])
        return Told(seconds, [name for each in said for name in each["missing"]])


@asynccontextmanager
async def running(options: Options, directory: Path) -> AsyncIterator[Scene]:
    """etcd with a network configuration, the lease services and the crowds; no node yet."""
    etcd = Etcd(directory)
    tiers = list[list[LeaseService]]()
    crowds = [CrowdProcess(number, directory) for number in range(options.crowds)]
    store = ["--store=etcd", f"--etcd-endpoints={etcd.endpoint}"]
    for tier, count in enumerate(options.tiers):
        above = tiers[-1] if tiers else []
        served = [*map(_name, range(1, count + 1)), _MARKER] if options.per_node else [""] * count
        stores = [
            ["--store=relay", f"--upstream={above[n % len(above)].address}"] if above else store
            for n in range(len(served))
        ]
        tiers.append([LeaseService(tier, n, stores[n], directory, node) for n, node in enumerate(served)])
    scene = Scene(options, etcd, tiers, crowds, now())
    started: list[CrowdProcess] = []
    try:
        etcd.start()
        await _put_network(etcd)
        for service in scene.services:
            service.start()
        for crowd in crowds:
            await crowd.start(etcd.endpoint)
            started.append(crowd)
        for service in scene.services:
            await service.until_present()
        yield scene
    finally:
        await asyncio.gather(*(crowd.stop() for crowd in started), return_exceptions=True)
        for process in (*scene.services, etcd):
            process.stop()


def _name(number: int) -> str:
    """Returns the name of the node of this number."""
    return f"node-{number:05}"


async def _put_network(etcd: Etcd) -> None:
    async with asyncio.timeout(30), etcd_client(etcd.endpoint) as client:
        while True:
            etcd.check()
            with suppress(Unavailable):
                await put_network(client, _NETWORK)
                return
            await asyncio.sleep(0.05)
