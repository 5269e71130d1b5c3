"""CapturePackets: what is captured for which peer, as messages."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from ipaddress import ip_address
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.services.core.errors import Exhausted, InvalidInput, NotYet
from flannelette.services.core.family import Address
from flannelette.services.core.network import NetworkConfig
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
from flannelette.services.dataplane.events.journal import Event, NodeEventKind
from flannelette.services.dataplane.netlink.wireguard.values import WireguardPeer
from flannelette.services.dataplane.peers.peer import Peer, PeerContext
from flannelette.services.runtime.events import MOST_NAMED, Subject

_LIMITS: Final = {"seconds": (30, 600), "bytes": (10 << 20, 1 << 30), "snap_length": (256, 262_144)}
"""Default and largest."""
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
                    yield _message(batch)
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


def _message(batch: PacketBatch) -> pb.CapturePacketsResponse:
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
