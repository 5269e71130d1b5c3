"""`flannelette trace`: the path of a packet, asked of the dataplane and masq of each node that it passes."""

import asyncio
from collections.abc import Callable, Iterable
from itertools import product
from typing import Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.core.conditions import Weight
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, ask
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.diagnose.packet_path import Half, PacketPath, PathStep, path_of
from flannelette.services.ctl.diagnose.path_text import paths_text
from flannelette.services.ctl.problems import Problem
from flannelette.services.ctl.render.screen import Screen

_MOST_TRACED: Final = 8
"""Largest number of pairs of nodes whose packets are followed."""
_MOST_AT_ONCE: Final = 16
"""Nodes that are asked at the same time."""


async def trace(nodes: Nodes, screen: Screen, source: str, destination: str, *, whole_return: bool) -> int:
    """Prints the path there, and in short the path back. 0: nothing is wrong. 1: one is broken. 2: nobody answers."""
    there = await _follow(nodes, source, destination, screen.warn)
    paths = [there]
    if there.destination_node:
        paths.append(await _follow(nodes, there.destination, there.source))
    if screen.json:
        screen.show_json({"paths": [path.document() for path in paths]})
    else:
        screen.show(paths_text(paths, screen.width, whole_return=whole_return))
    return int(any(path.first_broken for path in paths))


async def broken_places(nodes: Nodes, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], PathStep]:
    """Places where packets between these ends are lost, there or back, by pair.

    Pairs for which no trace finds a place are left out.
    """

    async def one(source: str, destination: str) -> PathStep | None:
        ways = product((4, 6), ((source, destination), (destination, source)))
        for version, ends in ways:
            try:
                path = await _follow(nodes, *ends, version=version)
            except CallFailed:
                continue
            if path.first_broken is not None:
                return path.first_broken
        return None

    chosen = [*dict.fromkeys(pairs)][:_MOST_TRACED]
    found = await asyncio.gather(*(one(*pair) for pair in chosen))
    return {pair: step for pair, step in zip(chosen, found, strict=True) if step is not None}


def problem_at(step: PathStep, problem: str) -> Problem:
    """What a trace has found, as a problem of the node where the packet ends."""
    evidence = f"{step.kind}: {step.text}"
    return Problem("dataplane", problem, step.cure, evidence, step.reason, Weight.BROKEN, "trace", (step.node,))


async def _follow(
    nodes: Nodes, source: str, destination: str, warn: Callable[[str], None] = lambda _: None, *, version: int = 0
) -> PacketPath:
    """Asks all nodes, of which two at most know the path. Raises CallFailed: none knows it."""
    turns = asyncio.Semaphore(_MOST_AT_ONCE)
    request = pb.TracePacketRequest(source=source, destination=destination, version=version)

    async def one(targets: Targets) -> Half | CallFailed:
        async with turns:
            return await _half(targets, request)

    answers = dict(zip(nodes, await asyncio.gather(*map(one, nodes.values())), strict=True))
    halves = [answer for answer in answers.values() if isinstance(answer, Half)]
    failures = {node: answer for node, answer in answers.items() if isinstance(answer, CallFailed)}
    if not halves:
        raise next((each for each in failures.values() if each.reached), next(iter(failures.values())))
    path = path_of(halves)
    for node, failure in failures.items() if path.remarks else ():
        warn(f"{node}: {failure}")
    if not path.steps:
        asked = ", ".join(half.told.node for half in halves)
        raise CallFailed(f"neither {source} nor {destination} is of {asked}: {' '.join(path.remarks)}", reached=True)
    return path


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
