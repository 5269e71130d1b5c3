"""`flannelette trace`: the way of a packet, asked of the dataplane and masq of each node that it passes."""

import asyncio
from collections.abc import Callable
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub

from services.ctl.connect.call import LIST_SECONDS, CallFailed, ask
from services.ctl.connect.contexts import Nodes
from services.ctl.connect.targets import Targets
from services.ctl.diagnose.way_text import ways_text
from services.ctl.render.screen import Screen
from services.ctl.way import Half, Way, way_of

_MOST_AT_ONCE: Final = 16
"""Nodes that are asked at the same time."""


async def trace(nodes: Nodes, screen: Screen, source: str, destination: str, *, whole_return: bool) -> int:
    """Prints the way there, and in short the way back. 0: nothing is wrong. 1: one is broken. 2: nobody answers."""
    there = await _follow(nodes, source, destination, screen.warn)
    ways = [there]
    if there.destination_node:
        ways.append(await _follow(nodes, there.destination, there.source))
    if screen.json:
        screen.show_json({"ways": [way.document() for way in ways]})
    else:
        screen.show(ways_text(ways, screen.width, whole_return=whole_return))
    return int(any(way.first_broken for way in ways))


async def _follow(nodes: Nodes, source: str, destination: str, warn: Callable[[str], None] = lambda _: None) -> Way:
    """Asks all nodes, of which two at most know the way. Raises CallFailed: none knows it."""
    turns = asyncio.Semaphore(_MOST_AT_ONCE)
    request = pb.TracePacketRequest(source=source, destination=destination)

    async def one(targets: Targets) -> Half | CallFailed:
        async with turns:
            return await _half(targets, request)

    answers = dict(zip(nodes, await asyncio.gather(*map(one, nodes.values())), strict=True))
    halves = [answer for answer in answers.values() if isinstance(answer, Half)]
    failures = {node: answer for node, answer in answers.items() if isinstance(answer, CallFailed)}
    if not halves:
        raise next((each for each in failures.values() if each.reached), next(iter(failures.values())))
    way = way_of(halves)
    for node, failure in failures.items() if way.remarks else ():
        warn(f"{node}: {failure}")
    if not way.steps:
        asked = ", ".join(half.told.node for half in halves)
        raise CallFailed(f"neither {source} nor {destination} is of {asked}: {' '.join(way.remarks)}", reached=True)
    return way


async def _half(targets: Targets, request: pb.TracePacketRequest) -> Half | CallFailed:
    try:
        told = await ask(targets["dataplane"], lambda c: DataplaneServiceStub(c).TracePacket(request), LIST_SECONDS)
    except CallFailed as failure:
        return failure
    numbers = [number for number, step in enumerate(told.steps) if step.HasField("packet")]
    said = await asyncio.gather(*(_at_firewall(targets, told.steps[number].packet) for number in numbers))
    return Half(told, dict(zip(numbers, said, strict=True)))


async def _at_firewall(targets: Targets, packet: pb.FirewallPacket) -> masq_pb2.ExplainResponse | CallFailed:
    request = masq_pb2.ExplainRequest(
        source=packet.source,
        destination=packet.destination,
        incoming=packet.incoming,
        outgoing=packet.outgoing,
        protocol=packet.protocol,
        port=packet.port,
        hook=packet.hook,
    )
    try:
        return await ask(targets["masq"], lambda c: MasqServiceStub(c).Explain(request), LIST_SECONDS)
    except CallFailed as failure:
        return failure
