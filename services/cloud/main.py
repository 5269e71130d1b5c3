"""`flannelette-cloud`: the process that has the cloud's credentials, and writes the routes of all nodes.

Its settings, the calls of flannelette.cloud.v1, and what is put together.
"""
# ruff: noqa: N802, D102 - cloud.proto names and documents the calls

import asyncio
import re
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from flannelette.cloud.v1 import cloud_pb2 as pb
from flannelette.cloud.v1 import cloud_pb2_grpc
from flannelette.lease.v1 import lease_pb2
from flannelette.services.cloud.routes import Cloud, Row
from flannelette.services.cloud.writer import CloudEventKind, Writer
from flannelette.services.core.errors import Misconfigured, NotImplementedYet
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.conditions import condition_to_proto, older_finding
from flannelette.services.runtime.events import (
    Event,
    EventFile,
    Journal,
    Reading,
    RecordedEvent,
    note_readiness,
    watch,
)
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.networks import moved_address, socket_address
from flannelette.services.runtime.process.process import Process, run
from flannelette.services.runtime.process.settings import ProcessSettings, flag
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.state import unwritten
from flannelette.services.runtime.telemetry.health import Health

_URL: Final = re.compile(r"https?://[^/\s]")


@dataclass(frozen=True, kw_only=True)
class CloudSettings(ProcessSettings):
    """Flags of flannelette-cloud. Credentials are no flags: the providers' own environment and instance roles."""

    lease_address: str = flag(
        "", "Address of the lease service: unix:PATH or HOST:PORT. Default: lease.sock in --socket-dir."
    )
    state_dir: str = flag(
        "/var/lib/flannelette",
        "Directory that keeps which routes are ours, for AWS, whose routes have no description. Empty: none.",
    )
    cloud_interval: int = flag(60, "Time between two comparisons with the cloud's tables, in seconds.")
    cloud_mark: str = flag(
        "flannelette",
        "Text by which routes with a description are ours. One per cluster, where clusters share a network.",
    )
    cloud_routes_limit: int = flag(
        0, "How many routes a table takes, to warn before it is full; 0: the provider's default quota."
    )
    cloud_endpoint: str = flag("", "URL of the provider's API. Default: the provider's own, of the region.")
    cloud_metadata: str = flag("", "URL of the instance's metadata service. Default: the provider's own.")

    def __post_init__(self) -> None:
        if self.cloud_interval < 1:
            raise Misconfigured(f"--cloud-interval is {self.cloud_interval}: use at least 1 second")
        if not self.cloud_mark.strip():
            raise Misconfigured("--cloud-mark is empty: routes of others would be ours; write the cluster's name")
        if self.cloud_routes_limit < 0:
            raise Misconfigured(
                f"--cloud-routes-limit is {self.cloud_routes_limit}: use the quota of a table, or 0 for the default"
            )
        for name, url in (("endpoint", self.cloud_endpoint), ("metadata", self.cloud_metadata)):
            if url and not _URL.match(url):
                raise Misconfigured(f"--cloud-{name} is {url}: write a URL, as https://HOST")

    @property
    def lease_service(self) -> str:
        """Where the lease service is."""
        return moved_address(self.lease_address) or socket_address(self.socket_dir, "lease")


class CloudServicer(cloud_pb2_grpc.CloudServiceServicer):
    """See cloud.proto for the guarantees of each call."""

    def __init__(self, writer: Writer, journal: Journal, health: Health, stopping: asyncio.Event) -> None:
        self._writer = writer
        self._journal = journal
        self._health = health
        self._stopping = stopping
        self._start_time = time.time()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        writer, found = self._writer, self._health.findings
        return pb.GetStatusResponse(
            ready=self._health.ready,
            reasons=self._health.reasons,
            version=version(),
            backend=writer.backend,
            paused=writer.is_paused,
            routes=[_route(row) for row in writer.last.rows],
            findings=[older_finding(pb.Finding, each) for each in found],
            conditions=[condition_to_proto(each) for each in (*self._health.unready, *found)],
            last_look_time=_timestamp(writer.looked_at),
            start_time=_timestamp(self._start_time),
            time=_timestamp(time.time()),
        )

    async def SyncRoutes(self, request: pb.SyncRoutesRequest, context: Any) -> pb.SyncRoutesResponse:
        return pb.SyncRoutesResponse(commands=await self._writer.sync(dry_run=request.dry_run))

    async def TeardownRoutes(self, request: pb.TeardownRoutesRequest, context: Any) -> pb.TeardownRoutesResponse:
        commands = await self._writer.sync(dry_run=request.dry_run, remove=True)
        return pb.TeardownRoutesResponse(commands=commands)

    def WatchEvents(self, request: pb.WatchEventsRequest, context: Any) -> AsyncIterator[pb.WatchEventsResponse]:
        reading = Reading(self._journal, request, request.destination, _event)
        end = "the cloud service is stopping; the routes stay as they are"
        return watch(reading, self._stopping, follows=not request.no_follow, end=end)


def _route(row: Row) -> pb.Route:
    return pb.Route(
        table=row.route.table,
        destination=str(row.route.destination),
        target=row.route.target,
        state=row.route.state,
        node=row.node,
        problem=row.problem,
        planned=row.is_planned,
    )


def _event(entry: RecordedEvent) -> pb.WatchEventsResponse:
    return pb.WatchEventsResponse(
        routes=[pb.RouteName(destination=subject.name, table=subject.of) for subject in entry.event.subjects]
    )


def _timestamp(seconds: float) -> Timestamp | None:
    if not seconds:
        return None
    timestamp = Timestamp()
    timestamp.FromMicroseconds(int(seconds * 1_000_000))
    return timestamp


_PROVIDERS: Final = {
    "ali-vpc": ("ali", "Ali"),
    "aws-vpc": ("aws", "Aws"),
    "gce": ("gce", "Gce"),
    "tencent-vpc": ("tencent", "Tencent"),
}
"""The module of a backend, which is also the extra with its SDK, and the class in it."""


def make_cloud(settings: CloudSettings, network: NetworkConfig) -> Cloud:
    """The provider of a network. Raises CloudError, InvalidInput, NotImplementedYet: its SDK is not installed."""
    module, name = _PROVIDERS[network.backend_type]
    try:
        provider = getattr(import_module(f"flannelette.services.cloud.providers.{module}"), name)
    except ImportError as error:
        raise NotImplementedYet(
            f"backend {network.backend_type} needs a provider's SDK ({error}): pip install 'flannelette[{module}]'"
        ) from None
    made: Cloud = provider(
        network.options,
        endpoint=settings.cloud_endpoint,
        metadata=settings.cloud_metadata,
        most=settings.cloud_routes_limit,
        mark=settings.cloud_mark,
    )
    return made


@asynccontextmanager
async def build(settings: CloudSettings, process: Process) -> AsyncIterator[None]:
    """Connects the feed, the writer and the calls."""
    connection = LeaseConnection(settings.lease_service, "", process.transport)  # of no node: it only looks
    directory = Path(settings.state_dir) if settings.state_dir else None
    if directory:
        with suppress(OSError):  # then its log says what it cannot keep
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    events = EventFile(directory / "cloud.events" if directory else None, CloudEventKind)
    journal = Journal(earlier=events.read())
    journal.note(Event(CloudEventKind.SERVICE_STARTED, f"flannelette-cloud {version()} started"))
    writer = Writer(
        lambda: (feed.table, feed.error),
        partial(make_cloud, settings),
        process.health,
        journal,
        interval=settings.cloud_interval,
        state=directory / "cloud.routes" if directory else None,
    )
    feed = Feed(connection, lease_pb2.VIEW_ALL, lambda touched: writer.notice(), most=settings.max_leases)
    process.health.set("leases", feed.error)
    process.health.finders.append(lambda: writer.last.findings())
    process.health.finders.append(lambda: unwritten([writer.owned.file, events]))
    servicer = CloudServicer(writer, journal, process.health, process.stopping)
    process.servicers["flannelette.cloud.v1.CloudService"] = lambda server: (
        cloud_pb2_grpc.add_CloudServiceServicer_to_server(servicer, server)
    )
    process.jobs |= {"feed": feed.run, "writer": writer.run, "event file": partial(events.run, journal)}
    process.on_readiness = partial(note_readiness, journal, CloudEventKind.READINESS)
    try:
        yield
    finally:
        await events.close(journal)
        await connection.close()


def main() -> None:
    """Runs the console script `flannelette-cloud`."""
    sys.exit(run("cloud", CloudSettings, build))


if __name__ == "__main__":
    main()
