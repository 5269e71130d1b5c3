"""TracePacket: the halves of a packet's path that this node has, as messages."""

from dataclasses import replace

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.errors import NotYet
from flannelette.services.dataplane.controller import Controller
from flannelette.services.dataplane.diagnose.inspector import Inspector
from flannelette.services.dataplane.kernel.inspect import ObjectCheck, inspect_peers
from flannelette.services.dataplane.links import actual
from flannelette.services.dataplane.netlink.fou.values import FouPort
from flannelette.services.dataplane.netlink.wireguard.values import WireguardDevice
from flannelette.services.dataplane.peers.peer import Peer, PeerContext, node_objects
from flannelette.services.dataplane.trace.ends import Places, ends_of
from flannelette.services.dataplane.trace.look import TraceRequest, look
from flannelette.services.dataplane.trace.receiving import facts_of, receiving
from flannelette.services.dataplane.trace.sending import sending
from flannelette.services.dataplane.trace.steps import Step, Verdict

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
