"""flannelette.dataplane.v1.DataplaneService: its calls, and below them what each does.

First what an operator can ask for (a comparison now, a teardown, a hand-over to flanneld), then the halves of a
packet's path that this node has, the journal, and captures. Status and probes have files of their own.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from ipaddress import ip_address
from typing import Any, Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1 import dataplane_pb2_grpc
from flannelette.services.core.errors import Exhausted, InvalidInput, NotFound, NotYet, Unavailable
from flannelette.services.core.family import Address, Family
from flannelette.services.core.leases.lease import Progress
from flannelette.services.core.leases.table import Table
from flannelette.services.core.network import NetworkConfig
from flannelette.services.dataplane.api.probes import (
    OnDemand,
    add_round_trips,
    probe_addresses,
    probe_peers,
    probes_of,
)
from flannelette.services.dataplane.api.status import (
    CAUSES,
    add_counters,
    chosen_peers,
    counts,
    list_peers,
    list_places,
    status_of,
)
from flannelette.services.dataplane.backends.backend import NodeIdentity
from flannelette.services.dataplane.capture import (
    AnyOf,
    Capture,
    Expression,
    Limits,
    PacketBatch,
    batches,
    inner,
    outer,
)
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.events import Cause, Event, NodeEventKind, NodeJournal
from flannelette.services.dataplane.kernel.programmer import ObjectCheck, inspect_peers, peer_traffic
from flannelette.services.dataplane.kernel.reconciler import KernelPlan, flannel_shape
from flannelette.services.dataplane.links import actual
from flannelette.services.dataplane.links.interfaces import Device
from flannelette.services.dataplane.links.reconcile import device_commands, present_devices
from flannelette.services.dataplane.netlink.kinds import command
from flannelette.services.dataplane.netlink.objects import (
    FouPort,
    KernelObject,
    WireguardDevice,
    WireguardPeer,
    steps,
    verb_of,
)
from flannelette.services.dataplane.node.overlay_config import OverlayConfig
from flannelette.services.dataplane.peers import Peer, PeerContext, node_objects
from flannelette.services.dataplane.probes.prober import Prober
from flannelette.services.dataplane.trace.look import Places, TraceRequest, ends_of, look
from flannelette.services.dataplane.trace.steps import Step, Verdict, facts_of, receiving, sending
from flannelette.services.runtime.events import MOST_NAMED, Reading, RecordedEvent, Subject, either, watch
from flannelette.services.runtime.rpc.authorization import caller
from flannelette.services.runtime.telemetry.health import Health
from flannelette.services.runtime.telemetry.logs import get_logger

log = get_logger()

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


async def resync(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """The commands that bring the kernel into line, and what failed. Ends the pause after a teardown.

    Raises NotYet, Unavailable. The work is the loop's, so that a caller who goes away interrupts nothing.
    """
    async with dataplane.lock:
        commands = await preview(dataplane)
        if dry_run:
            return commands, []
        dataplane.resume()
        turn = dataplane.iterations + 1
    async with dataplane.changed:
        await dataplane.changed.wait_for(lambda: dataplane.iterations >= turn)
    if dataplane.status.error:
        raise Unavailable(dataplane.status.error)
    return commands, _sentences(dataplane, dataplane.programmer.reconciler.failures)


async def teardown(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Removes everything of ours, and pauses; returns the commands and what failed. Raises NotYet.

    Whole, also when the caller goes away meanwhile.
    """
    return await dataplane.lock.run(partial(_tear_down, dataplane, dry_run=dry_run))


async def hand_over(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    """Rewrites everything of ours as a flanneld makes it, and pauses; returns the commands and what failed.

    Raises NotYet, also for a backend that cannot be handed over, Unavailable. A route is made before ours goes; where
    that fails, ours stays. Whole, as above.
    """
    return await dataplane.lock.run(partial(_hand_over, dataplane, dry_run=dry_run))


async def _tear_down(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    programmer = dataplane.programmer
    if programmer.context is None:
        raise NotYet("nothing has been programmed yet, so there is nothing to remove")
    todo = await programmer.plan(programmer.context, None)
    commands, errors = _commands(todo, programmer.context), list[str]()
    if not dry_run:
        log.warning("teardown: everything of ours is removed from the kernel", objects=len(todo))
        dataplane.pause("torn down by an operator; `flannelette resync` or a restart ends it")
        errors = await _carry_out(dataplane, todo, NodeEventKind.TEARDOWN, "everything of ours removed; paused")
    commands += await dataplane.tracker.remove_all(dry_run=dry_run)
    return commands, errors


async def _hand_over(dataplane: Controller, *, dry_run: bool) -> tuple[list[str], list[str]]:
    programmer = dataplane.programmer
    config, context, table = await _now(dataplane)
    if config.backend.hand_over_obstacle:
        raise NotYet(config.backend.hand_over_obstacle)
    if context.adds_only:
        raise NotYet(f"{dataplane.cached_reason}; hand over when a lease service is there")
    missing = context.links.devices.keys() - (await _present(config, dataplane.node)).keys()
    if missing:
        absent = ", ".join(sorted(context.links.devices[family].name for family in missing))
        raise NotYet(f"{absent} is missing, so there is nothing to hand over: `flannelette resync` first")
    todo = await programmer.plan(context, table.leases, flannel_shape)
    errors: list[str] = []
    if not dry_run:
        log.warning("hand-over: everything of ours becomes flannel's", put=len(todo.put), deleted=len(todo.delete))
        dataplane.pause("handed over to flanneld by an operator; `flannelette resync` or a restart takes it back")
        dataplane.renewer.stop()
        what = "everything of ours handed over to flanneld, and paused"
        errors = await _carry_out(dataplane, todo, NodeEventKind.HAND_OVER, what)
    return _commands(todo, context), errors


async def _carry_out(dataplane: Controller, todo: KernelPlan, kind: NodeEventKind, what: str) -> list[str]:
    """What failed of a plan after which nothing of ours is programmed."""
    failed = await dataplane.programmer.reconciler.kernel.apply(todo)
    dataplane.programmer.forget()
    dataplane.journal.note(Event(kind, what, "an operator", objects=len(todo)))
    dataplane.tell(dataplane.status.progress and Progress(dataplane.node, ""))
    return _sentences(dataplane, failed, todo)


async def preview(dataplane: Controller) -> list[str]:
    """The commands that a comparison now would carry out. Raises NotYet. Call it between two turns."""
    config, context, table = await _now(dataplane)
    todo = await dataplane.programmer.plan(context, table.leases)
    own = dataplane.own
    identity = dataplane.tracker.identity(own.lease, own.published(table), own.cached)
    commands = await device_commands(config.devices(identity), dataplane.tracker.devices)
    for each in dataplane.tracker.earlier.overlays:
        commands += await device_commands(each.config.devices(identity), each.devices)
    return commands + _commands(todo, context)


async def _now(dataplane: Controller) -> tuple[OverlayConfig, PeerContext, Table]:
    """The configuration, the context with the devices and neighbours of now, and the leases. Raises NotYet."""
    tracker, last = dataplane.tracker, dataplane.programmer.context
    config, table = tracker.config, dataplane.table
    if config is None or last is None or table is None:
        raise NotYet("; ".join(dataplane.health.reasons) or "no complete snapshot of leases yet")
    # Another program may have created a device again since the dump; one that is not there yet is known by its name.
    devices = {**last.links.devices, **await _present(config, dataplane.node)}
    links = replace(last.links, devices=devices, on_link=await tracker.read_connected_routes())
    return config, replace(last, links=links), table


async def _present(config: OverlayConfig, node: str) -> Mapping[Family, Device]:
    return await present_devices(config.devices(NodeIdentity(node)))


def _commands(todo: KernelPlan, context: PeerContext) -> list[str]:
    names = context.names()
    return [command(verb, item, names) for verb, items in steps(todo) for item in items]


def _sentences(
    dataplane: Controller, failures: Mapping[KernelObject, str], todo: KernelPlan | None = None
) -> list[str]:
    names = dataplane.programmer.names()
    return [
        f"{command('replace' if todo is None else verb_of(todo, item), item, names)}: {why}"
        for item, why in failures.items()
    ]


_VERDICTS = {
    Verdict.PASSES: pb.TRACE_VERDICT_PASSES,
    Verdict.BROKEN: pb.TRACE_VERDICT_BROKEN,
    Verdict.UNKNOWN: pb.TRACE_VERDICT_UNKNOWN,
}


async def trace_packet(
    dataplane: Controller, inspector: Inspector, request: pb.TracePacketRequest
) -> pb.TracePacketResponse:
    """What this node knows of the packet's path. Raises NotYet, NotFound, InvalidInput, Unavailable."""
    context = dataplane.programmer.context
    if context is None:
        raise NotYet("nothing has been programmed yet, so there is no path to follow")
    held = {each.address for each in await inspector.addresses()}
    peers = list(dataplane.programmer.peers.values())
    ends = ends_of(Places(dataplane.node, context, peers, held), request.source, request.destination, request.version)
    response = pb.TracePacketResponse(
        source=str(ends.source.address),
        destination=str(ends.destination.address),
        source_node=ends.source.node,
        destination_node=ends.destination.node,
        node=dataplane.node,
    )
    async with dataplane.lock:
        wanted = _wanted(dataplane, context)
        if ends.source.is_here and not ends.destination.is_here:
            checks = await _checks(dataplane, ends.destination.peer, is_sender=True)
            view = await look(inspector, wanted, ends, checks, is_sender=True)
            response.steps.extend(_step(each, pb.TRACE_SIDE_SENDER) for each in sending(view))
        if ends.destination.is_here:
            checks = await _checks(dataplane, ends.source.peer, is_sender=False)
            view = await look(inspector, wanted, ends, checks, is_sender=False)
            response.steps.extend(_step(each, pb.TRACE_SIDE_RECEIVER) for each in receiving(view))
            link = await actual.find_link(context.links.underlay.name)
            response.facts.update(facts_of(view, link.mac if link is not None else ""))
    return response


def _wanted(dataplane: Controller, context: PeerContext) -> TraceRequest:
    config, own, table = dataplane.tracker.config, dataplane.own, dataplane.table
    foreign = tuple(dataplane.programmer.reconciler.foreign)
    if config is None or table is None:
        return TraceRequest(context, foreign=foreign)
    identity = dataplane.tracker.identity(own.lease, own.published(table), own.cached)
    return TraceRequest(context, config.devices(identity), foreign)


async def _checks(dataplane: Controller, peer: Peer | None, *, is_sender: bool) -> tuple[ObjectCheck, ...]:
    """What this node has for the peer; a receiver with what it has for all peers."""
    programmer = dataplane.programmer
    if peer is None or programmer.context is None:
        return ()
    common = (o for o in node_objects(programmer.context) if isinstance(o, FouPort | WireguardDevice))
    peer = peer if is_sender else replace(peer, objects=(*peer.objects, *common))
    ((_, checks),) = await inspect_peers(programmer, [peer])
    return checks


def _step(step: Step, side: pb.TraceSide.ValueType) -> pb.TraceStep:
    message = pb.TraceStep(
        kind=step.kind,
        text=step.text,
        verdict=_VERDICTS[step.verdict],
        reason=step.reason,
        cure=step.cure,
        owner=step.owner,
        expects=step.expects,
        side=side,
    )
    if step.packet is not None:
        packet = step.packet
        message.packet.CopyFrom(
            pb.FirewallPacket(
                source=str(packet.source),
                destination=str(packet.destination),
                incoming=packet.incoming,
                outgoing=packet.outgoing,
                protocol=packet.protocol,
                port=packet.port,
                hook=packet.hook,
            )
        )
    return message


def reading_of(journal: NodeJournal, request: pb.WatchEventsRequest) -> Reading[pb.WatchEventsResponse]:
    """One call of WatchEvents. Raises InvalidInput for what it cannot look for."""
    return Reading(journal, request, request.peer, _event)


def _event(entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    message = pb.WatchEventsResponse(
        peers=[pb.PeerName(name=subject.name, node=subject.of) for subject in event.subjects],
        peer_count=event.subject_count,
        objects=event.objects,
    )
    if isinstance(event.repair, Cause):
        message.repair_cause = CAUSES[event.repair]
    return message


_LIMITS: Final = {"seconds": (30, 600), "bytes": (10 << 20, 1 << 30), "snap_length": (256, 262_144)}
"""Default and largest value of each limit of a capture."""
_CARRIED_AT: Final = {"vxlan": 30, "ipip": 0, "udp": 8}
"""Bytes from the end of the outer IP header to the inner one, of backends that do not encrypt."""


class Captures:
    """The captures of the node, one at a time."""

    def __init__(self, dataplane: Controller, stopping: asyncio.Event) -> None:
        self._dataplane = dataplane
        self._stopping = stopping
        self._last: Capture | None = None

    async def run(
        self, request: pb.CapturePacketsRequest, peers: Sequence[Peer], who: str
    ) -> AsyncGenerator[pb.CapturePacketsResponse, None]:
        """See the proto. `who` asks. Raises InvalidInput, NotYet, Exhausted, Unavailable."""
        limits, context = _limits(request), self._dataplane.programmer.context
        if context is None:
            raise NotYet("; ".join(self._dataplane.health.reasons) or "no network configuration yet")
        pod = _pod(request.pod, peers, context) if request.pod else None
        if self._last is not None and self._last.is_open:
            raise Exhausted(f"a capture runs already on this node, for {self._last.limits.seconds:g} s at most")
        wanted = filters(context, peers, pod, self._dataplane.tracker.earlier.networks)
        capture = self._last = Capture(wanted, limits)
        what = f"packets of {request.name}" + (f" with {pod}" if pod else "")
        self._note(f"capturing {what}, {limits.snap_length} bytes of each", who, peers)
        try:
            underlays = {each.links.underlay.name for each in context.overlays}
            yield pb.CapturePacketsResponse(
                interfaces=[
                    pb.CaptureInterface(name=name, index=index, role="underlay" if name in underlays else "overlay")
                    for name, index in capture.interfaces
                ]
            )
            async with aclosing(batches(capture, self._stopping)) as found:
                async for batch in found:
                    yield _packets(batch)
        finally:
            capture.close()
            self._note(f"captured {capture.count} {what}; {capture.dropped} were lost", who, peers)

    def _note(self, what: str, who: str, peers: Sequence[Peer]) -> None:
        named = tuple(Subject(peer.lease.name, peer.lease.node) for peer in peers[:MOST_NAMED])
        event = Event(NodeEventKind.CAPTURE, what, who, subjects=named, subject_count=len(peers))
        self._dataplane.journal.note(event)


def filters(
    context: PeerContext, peers: Sequence[Peer], pod: Address | None, earlier: Sequence[NetworkConfig] = ()
) -> dict[str, Expression]:
    """What is captured, by the interface's name: inner packets everywhere, outer ones in the underlay.

    `earlier`: the configurations whose backends stay while the backend changes.
    """
    subnets = [subnet for peer in peers for subnet in peer.lease.subnets]
    networks = [subnet.cidr for subnet in subnets]
    hosts = {subnet.public_address for subnet in subnets if subnet.public_address is not None}
    keys = (item for peer in peers for item in peer.objects if isinstance(item, WireguardPeer))
    hosts |= {ip_address(each.endpoint) for each in keys if each.endpoint}
    carried = inner(networks, pod)
    outside = [
        outer(tunnel, host, networks, pod, _CARRIED_AT.get(each.backend_type, -1))
        for each in (context.network, *earlier)
        if (tunnel := each.tunnel()) is not None
        for host in sorted(hosts, key=str)
    ]
    devices: dict[str, Expression] = {device.name: carried for device in context.devices()}
    return devices | {each.links.underlay.name: AnyOf([carried, *outside]) for each in context.overlays}


def _limits(request: pb.CapturePacketsRequest) -> Limits:
    chosen = {name: getattr(request, name) or default for name, (default, _) in _LIMITS.items()}
    for name, (_, largest) in _LIMITS.items():
        if chosen[name] > largest:
            raise InvalidInput(f"{name} is {chosen[name]}: give at most {largest}")
    return Limits(packets=request.packets, **chosen)


def _pod(text: str, peers: Sequence[Peer], context: PeerContext) -> Address:
    try:
        pod = ip_address(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is no address: write one like 10.5.1.2 or fd00::2") from None
    theirs = [subnet.cidr for peer in peers for subnet in peer.lease.subnets]
    if not any(pod in subnet for subnet in (*context.own_subnets, *theirs)):
        places = ", ".join(map(str, (*context.own_subnets, *theirs)))
        raise InvalidInput(f"{pod} is no pod of this node or of the peer: their subnets are {places}")
    return pod


def _packets(batch: PacketBatch) -> pb.CapturePacketsResponse:
    message = pb.CapturePacketsResponse(dropped=batch.dropped, ended=batch.ended)
    for packet in batch.packets:
        made = message.packets.add(
            interface=packet.interface,
            data=packet.data,
            length=packet.length,
            packet_type=packet.packet_type,
            link_address=packet.link_address,
            protocol=packet.protocol,
            hardware_type=packet.hardware_type,
        )
        made.time.FromNanoseconds(packet.nanoseconds)
    return message
