"""The calls of flannelette.cloud.v1: translate, call, return."""
# ruff: noqa: N802, D102 - cloud.proto names and documents the calls

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from google.protobuf.timestamp_pb2 import Timestamp

from flannelette.cloud.v1 import cloud_pb2 as pb
from flannelette.cloud.v1 import cloud_pb2_grpc
from flannelette.services.cloud.routes import Row
from flannelette.services.cloud.writer import Writer
from flannelette.services.runtime.conditions import condition_to_proto, older_finding
from flannelette.services.runtime.events import Journal, Reading, RecordedEvent, watch
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.health import Health


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
