"""`flannelette-cloud`: the process that has the cloud's credentials, and writes the routes of all nodes."""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from flannelette.cloud.v1 import cloud_pb2_grpc
from flannelette.lease.v1 import lease_pb2
from flannelette.services.cloud.api import CloudServicer
from flannelette.services.cloud.routes import Cloud
from flannelette.services.cloud.settings import CloudSettings
from flannelette.services.cloud.writer import CloudEventKind, Writer
from flannelette.services.core.errors import NotImplementedYet
from flannelette.services.core.network import NetworkConfig
from flannelette.services.runtime.events import Event, EventFile, Journal, note_readiness
from flannelette.services.runtime.lease.feed import Feed, LeaseConnection
from flannelette.services.runtime.process.process import Process, run
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.state import unwritten

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
