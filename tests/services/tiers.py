"""Lease services on top of each other, and a table kept equal to the one of any of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.services.core.leases.lease import Lease, LeaseRequest
from flannelette.services.core.limits import MOST_LEASES
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.lease.wire import lease_from_proto, request_to_proto
from tests.services.lease import ServiceProcess, stub_of


@dataclass
class Tiers:
    """An embedded store's service at the top, and relays below it, each of the one before."""

    directory: Path
    services: list[ServiceProcess] = field(default_factory=list)

    @property
    def config(self) -> Path:
        return self.directory / "net.json"

    @property
    def top(self) -> ServiceProcess:
        return self.services[0]

    @property
    def bottom(self) -> ServiceProcess:
        return self.services[-1]

    def start_top(self) -> ServiceProcess:
        store = (f"--net-config-path={self.config}", f"--store-file={self.directory}/leases.db")
        service = ServiceProcess(self._place(0), *store, "--guard-seconds=1")
        self.services[:1] = [service]
        return service

    def add_relay(self) -> None:
        above = self.services[-1].address
        place = self._place(len(self.services))
        self.services.append(ServiceProcess(place, "--store=relay", "--central", f"--upstream={above}"))

    def _place(self, number: int) -> Path:
        place = self.directory / f"tier{number}"
        place.mkdir(exist_ok=True)
        return place


@asynccontextmanager
async def feed_of(service: ServiceProcess, node: str = "", most: int = MOST_LEASES) -> AsyncIterator[Feed]:
    """A table kept equal to a service's, as a dataplane's."""
    connection = LeaseConnection(service.address, node)
    feed = Feed(connection, pb.VIEW_ALL, lambda touched: None, most=most)
    task = asyncio.create_task(feed.run())
    try:
        yield feed
    finally:
        task.cancel()
        await asyncio.wait([task])
        await connection.close()


def is_connected(feed: Feed) -> bool:
    return feed.table.synced and feed.table.store is not None and feed.table.store.connected


async def acquired(service: ServiceProcess, request: LeaseRequest) -> Lease:
    async with stub_of(service.address) as stub:
        return lease_from_proto((await stub.AcquireLease(request_to_proto(request))).lease)
