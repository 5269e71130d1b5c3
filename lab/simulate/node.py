"""A simulated node: a dataplane's own feed, lease renewer, reporter, peers and plan, without devices and a kernel."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Final

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.errors import FlanneletteError
from flannelette.services.core.family import IPV4, Network
from flannelette.services.core.leases.lease import FamilyRequest, Lease, LeaseRequest, Progress
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.backends import BUILT
from flannelette.services.dataplane.backends.backend import NodeLinks
from flannelette.services.dataplane.backends.vxlan import stable_mac
from flannelette.services.dataplane.controller import Reporter, progress_after
from flannelette.services.dataplane.events import NodeJournal
from flannelette.services.dataplane.kernel.programmer import PeerProgrammer
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.node.lease_renewer import LeaseRenewer
from flannelette.services.dataplane.peers import PeerContext
from flannelette.services.dataplane.settings import DataplaneSettings
from flannelette.services.dataplane.underlay import Underlay
from flannelette.services.runtime.lease.feed import Feed
from lab.simulate.kernel import SimulatedKernel
from lab.simulate.sharing import Shared, SharedConnection

_SETTINGS: Final = DataplaneSettings()
_UNDERLAY_INDEX, _DEVICE_INDEX = 2, 3
_FEW_EVENTS: Final = 16
"""Events kept in a journal that nobody reads."""
_RELEASE_AGAIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Marker:
    """A lease that a node shall come to know."""

    name: str
    address: IPv4Address
    """Public address of the lease then."""

    def is_in(self, leases: dict[str, Lease]) -> bool:
        """Whether a table has it."""
        lease = leases.get(self.name)
        return lease is not None and lease.subnets[0].public_address == self.address


class Node:
    """One start of a node. `kernel` is what an earlier start has left there; None: this node ends at its table."""

    def __init__(
        self,
        name: str,
        address: IPv4Address,
        service: str,
        shared: Shared,
        kernel: SimulatedKernel | None,
        former: list[Network],
    ) -> None:
        self.name = name
        self.address = address
        self.kernel = kernel
        self.service = service
        self.leased = asyncio.Event()
        """Set while the node holds its lease."""
        self.leased_at: float | None = None
        """When that was for the first time, on CLOCK_MONOTONIC."""
        self.marker: Marker | None = None
        self.marked = asyncio.Event()
        """Set once the marker, and so everything before it, is in the kernel; also when the node is stopped."""
        self.marked_at = 0.0
        """When it was, on CLOCK_MONOTONIC; 0: it is not."""
        self.marked.set()
        self._connection = SharedConnection(service, name, shared)
        self.feed = Feed(self._connection, pb.VIEW_ALL, self._notice)
        journal = NodeJournal(_FEW_EVENTS)
        margin = _SETTINGS.subnet_lease_renew_margin * 60
        self.renewer = LeaseRenewer(self._connection, margin, self._wake_up, journal, former=former)
        self._reporter = Reporter(self._connection)
        self._progress: Progress | None = None
        self._programmer = PeerProgrammer(name, kernel, journal) if kernel is not None else None
        self._device = Device("flannel.1", _DEVICE_INDEX, stable_mac(name, "flannel.1", ""), 1450, "flannel.1: vxlan")
        self._network: NetworkConfig | None = None
        self._touched: set[str] = set()
        self._wake = asyncio.Event()
        jobs = (self.feed.run(), self.renewer.run(), self._reporter.run(), self._run())
        self._tasks = [asyncio.create_task(job) for job in jobs]

    async def stop(self, *, leaves: bool = False) -> None:
        """Ends the node as the end of its process would: what is in the kernel stays. `leaves`: the
        lease goes back.
        """
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        while leaves and self.renewer.lease is not None:
            try:
                await self._connection.release(self.renewer.lease.name)
                break
            except FlanneletteError:
                await asyncio.sleep(_RELEASE_AGAIN)
        await self._connection.close()
        self.marked.set()  # last: nobody expects anything of a node that is gone

    def expect(self, marker: Marker) -> None:
        """`marked` is set once this is in the kernel."""
        self.marker, self.marked_at = marker, 0.0
        self.marked.clear()
        self._wake.set()

    @property
    def failures(self) -> list[str]:
        """Tasks that have ended, which none ever should."""
        ended = [task for task in self._tasks if task.done() and not task.cancelled()]
        return [f"{self.name}: {task.exception()!r}" for task in ended]

    def _notice(self, touched: frozenset[str]) -> None:
        if self._programmer is not None:
            self._touched |= touched
        if self.feed.table.lost:
            self.renewer.hear_of_loss(self.feed.table.lost)
        self._wake.set()

    def _wake_up(self) -> None:
        if self.renewer.reason:
            self.leased.clear()
        else:
            self.leased_at = self.leased_at or time.monotonic()
            self.leased.set()
        self._wake.set()

    async def _run(self) -> None:
        """Runs the control loop of the dataplane's controller, as far as it depends on leases only."""
        now, due = asyncio.get_running_loop().time, 0.0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due if due and self._programmer else None):
                    await self._wake.wait()
            self._wake.clear()
            table, network = self.feed.table, self.feed.table.network
            if not table.synced or network is None:
                continue
            if self.feed.connected:
                self.renewer.observe(table)
            if network is not self._network:
                self._follow(network)
            cursor = table.cursor
            if self._programmer is not None:
                is_due = now() >= due
                await self._program(self._programmer, table.leases, is_whole=is_due)
                if is_due:
                    due = now() + _SETTINGS.audit_interval
            if cursor and not self.renewer.reason:
                self._progress = progress_after(self._progress, self.name, cursor, {}, time.monotonic())
            self._reporter.tell(self._progress, self.feed.streams if self.feed.connected else 0)
            if self.marker is not None and self.marker.is_in(table.leases):
                self.marker, self.marked_at = None, time.monotonic()
                self.marked.set()

    def _follow(self, network: NetworkConfig) -> None:
        """Takes what follows from a network configuration."""
        self._network, self._backend = network, BUILT.make(network)
        underlay = Underlay(_UNDERLAY_INDEX, "eth0", 1500, (self.address,), (self.address,), "simulated")
        cidrs = tuple(network.cidrs(IPV4))
        self._links = NodeLinks(underlay, {IPV4: self._device}, _SETTINGS.route_protocol, networks=cidrs)
        part = FamilyRequest(self.address, self._backend.lease_data(IPV4, self._device))
        self.renewer.set_request(LeaseRequest(self.name, self._backend.lease_type, (part,)), network)

    async def _program(self, programmer: PeerProgrammer, leases: dict[str, Lease], *, is_whole: bool) -> None:
        assert self._network is not None  # noqa: S101 - a table has come
        own = self.renewer.lease.cidrs if self.renewer.lease else ()
        context = PeerContext(self._network, self._backend, self._links, own).after(programmer.context)
        touched, self._touched = self._touched, set()
        if is_whole or context != programmer.context:
            await programmer.program(context, leases)
        elif touched:
            await programmer.program(context, leases, touched)
