"""flannelette.dataplane.v1.DataplaneService: translates, calls, returns."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1 import dataplane_pb2_grpc
from flannelette.services.core.errors import InvalidInput, NotFound, Unavailable
from flannelette.services.dataplane.api.capture import Captures
from flannelette.services.dataplane.api.events import reading_of
from flannelette.services.dataplane.api.operations import hand_over, resync, teardown
from flannelette.services.dataplane.api.probes import add_round_trips, probe_addresses, probe_peers, probes_of
from flannelette.services.dataplane.api.status import (
    add_counters,
    chosen_peers,
    counts,
    list_peers,
    list_places,
    status_of,
)
from flannelette.services.dataplane.api.trace import trace_packet
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.kernel.inspect import inspect_peers, peer_traffic
from flannelette.services.dataplane.peers.peer import Peer
from flannelette.services.dataplane.probes.on_demand import OnDemand
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.runtime.events import either, watch
from flannelette.services.runtime.rpc.authorization import caller
from flannelette.services.runtime.telemetry.health import Health

_STOPPING = "the dataplane service is stopping; the kernel stays as it is"
_SHORTEST_PAUSE = 0.1
"""WatchStatus says at most ten things a second."""
_LONGEST_PAUSE = 1.0
"""Some of the status changes without an iteration of the control loop: what probes have shown, leases that expire."""


class DataplaneServicer(dataplane_pb2_grpc.DataplaneServiceServicer):
    """See dataplane.proto, which is the manual."""

    def __init__(
        self, dataplane: Controller, prober: Prober, inspector: Inspector, health: Health, stopping: asyncio.Event
    ) -> None:
        self._dataplane = dataplane
        self._inspector = inspector
        self._prober = prober
        self._on_demand = OnDemand()
        self._captures = Captures(dataplane, stopping)
        self._health = health
        self._stopping = stopping
        self._started_at = time.time()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        """See the proto."""
        response = pb.GetStatusResponse(status=self._status())
        if request.figures:
            add_round_trips(response.status.probes, self._prober)
            add_counters(response.status.devices)
        response.time.GetCurrentTime()
        return response

    async def WatchStatus(
        self, request: pb.WatchStatusRequest, context: Any
    ) -> AsyncIterator[pb.WatchStatusResponse]:
        """See the proto."""
        last: pb.Status | None = None
        stopped = asyncio.ensure_future(self._stopping.wait())
        try:
            while not stopped.done():
                seen, status = self._dataplane.iterations, self._status()
                if status != last:
                    yield pb.WatchStatusResponse(status=status)
                    last = status
                await either(stopped, self._dataplane.iteration_after(seen), _LONGEST_PAUSE)
                await asyncio.sleep(_SHORTEST_PAUSE)
        finally:
            stopped.cancel()
        raise Unavailable(_STOPPING)

    async def ListPeers(self, request: pb.ListPeersRequest, context: Any) -> pb.ListPeersResponse:
        """See the proto."""
        programmer = self._dataplane.programmer
        if request.look and not request.name:
            raise InvalidInput("look needs a name: it inspects one peer")
        chosen = self._chosen(request.name)
        if request.look:
            async with self._dataplane.lock:
                peers = list_places(programmer, await inspect_peers(programmer, chosen))
        else:
            peers = list_peers(programmer, request.name)
        traffic = dict[str, tuple[int, int]]()
        if request.figures:
            async with self._dataplane.lock:
                traffic = await peer_traffic(programmer, chosen)
        for peer in peers:
            peer.probes.extend(probes_of(self._prober, peer.name))
            if peer.name in traffic:
                peer.received_bytes, peer.sent_bytes = traffic[peer.name]
        if request.unprogrammed:
            peers = [peer for peer in peers if peer.state != pb.PEER_STATE_PROGRAMMED]
        return pb.ListPeersResponse(peers=peers, counts=counts(programmer))

    async def ProbePeers(self, request: pb.ProbePeersRequest, context: Any) -> AsyncIterator[pb.ProbePeersResponse]:
        """See the proto."""
        probes = probe_peers(self._dataplane, self._prober, self._on_demand, self._chosen(request.name))
        async with aclosing(probes):
            async for message in probes:
                yield message

    async def ProbeAddresses(
        self, request: pb.ProbeAddressesRequest, context: Any
    ) -> AsyncIterator[pb.ProbeAddressesResponse]:
        """See the proto."""
        probes = probe_addresses(self._dataplane, self._prober, self._on_demand, request.addresses)
        async with aclosing(probes):
            async for message in probes:
                yield message

    async def ResyncKernel(self, request: pb.ResyncKernelRequest, context: Any) -> pb.ResyncKernelResponse:
        """See the proto."""
        commands, errors = await resync(self._dataplane, dry_run=request.dry_run)
        return pb.ResyncKernelResponse(commands=commands, errors=errors)

    async def TeardownKernel(self, request: pb.TeardownKernelRequest, context: Any) -> pb.TeardownKernelResponse:
        """See the proto."""
        commands, errors = await teardown(self._dataplane, dry_run=request.dry_run)
        return pb.TeardownKernelResponse(commands=commands, errors=errors)

    async def HandOver(self, request: pb.HandOverRequest, context: Any) -> pb.HandOverResponse:
        """See the proto."""
        commands, errors = await hand_over(self._dataplane, dry_run=request.dry_run)
        return pb.HandOverResponse(commands=commands, errors=errors)

    async def TracePacket(self, request: pb.TracePacketRequest, context: Any) -> pb.TracePacketResponse:
        """See the proto."""
        return await trace_packet(self._dataplane, self._inspector, request)

    async def CapturePackets(
        self, request: pb.CapturePacketsRequest, context: Any
    ) -> AsyncIterator[pb.CapturePacketsResponse]:
        """See the proto."""
        if not request.name:
            raise InvalidInput("name is empty: say of which peer packets shall be captured")
        async with aclosing(self._captures.run(request, self._chosen(request.name), caller(context))) as messages:
            async for message in messages:
                yield message

    def WatchEvents(self, request: pb.WatchEventsRequest, context: Any) -> AsyncIterator[pb.WatchEventsResponse]:
        """See the proto."""
        reading = reading_of(self._dataplane.journal, request)
        return watch(reading, self._stopping, follows=not request.no_follow, end=_STOPPING)

    def _chosen(self, name: str) -> list[Peer]:
        """The peers of a lease name or a node, or all. Raises NotFound."""
        found = chosen_peers(self._dataplane.programmer, name)
        if name and not found:
            raise NotFound(
                f"no peer has the lease name or the node {name!r}: `flannelette peers` (ListPeers) lists all"
            )
        return found

    def _status(self) -> pb.Status:
        return status_of(self._dataplane, self._prober, self._health, self._started_at)
