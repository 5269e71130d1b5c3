"""The path of a packet through the nodes: the halves that dataplanes tell, with masq's word on firewalls."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from enum import StrEnum
from itertools import product
from typing import Any, Final

from flannelette.dataplane.v1 import dataplane_pb2 as pb
from flannelette.dataplane.v1.dataplane_pb2_grpc import DataplaneServiceStub
from flannelette.masq.v1 import masq_pb2
from flannelette.masq.v1.masq_pb2_grpc import MasqServiceStub
from flannelette.services.core.conditions import Weight
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.connect.call import LIST_SECONDS, CallFailed, ask, of_each, or_failure
from flannelette.services.ctl.connect.contexts import Nodes
from flannelette.services.ctl.connect.targets import Targets
from flannelette.services.ctl.problems import Problem

_UDP: Final = 17


class Verdict(StrEnum):
    """What becomes of the packet."""

    PASSES = "ok"
    BROKEN = "broken"
    UNKNOWN = "unknown"


_VERDICTS: Final = {pb.TRACE_VERDICT_PASSES: Verdict.PASSES, pb.TRACE_VERDICT_BROKEN: Verdict.BROKEN}


@frozen
class PathStep:
    """One object that decides about the packet."""

    node: str
    sends: bool
    """Whether the step is of the sender's half."""
    kind: str
    """The kind of object, such as `route`, or what decides in place of one, such as `forwarding`."""
    text: str
    """The object, in the notation of its tool."""
    verdict: Verdict
    reason: str = ""
    cure: str = ""
    owner: str = ""
    expects: Mapping[str, str] = field(default_factory=dict)


@frozen
class NodeTrace:
    """What one node has told, and its masq about each step that is a firewall's."""

    told: pb.TracePacketResponse
    firewalls: Mapping[int, masq_pb2.ExplainResponse | CallFailed] = field(default_factory=dict)
    """The answers about firewalls, by the number of the step."""


@frozen
class PacketPath:
    """The path from source to destination, as far as the nodes that answered know it."""

    source: str
    destination: str
    source_node: str
    destination_node: str
    steps: tuple[PathStep, ...]
    remarks: tuple[str, ...] = ()
    """What is not known, one sentence each."""

    @property
    def first_broken(self) -> PathStep | None:
        """Where the packet ends."""
        return next((step for step in self.steps if step.verdict is Verdict.BROKEN), None)

    @property
    def is_whole(self) -> bool:
        """Whether every node that the packet passes has told its half."""
        sends, takes = (any(step.sends is side for step in self.steps) for side in (True, False))
        is_local = bool(self.source_node) and self.source_node == self.destination_node
        return (sends or is_local or not self.source_node) and (takes or not self.destination_node)

    @property
    def outcome(self) -> str:
        """Says in a few words whether the path is whole, or where it breaks."""
        broken = self.first_broken
        if broken is not None:
            return f"broken on {broken.node} at {broken.kind}"
        if not self.is_whole:
            known = ", ".join(dict.fromkeys(step.node for step in self.steps))
            return f"nothing is wrong on {known}; the rest is not known"
        if not self.destination_node:
            return f"leaves {self.source_node or 'the node'}, to an address without a lease"
        return "arrives"

    def document(self) -> dict[str, Any]:
        """Returns the path as JSON."""
        steps = [
            {**{k: v for k, v in asdict(step).items() if k != "expects"}, "verdict": step.verdict.name}
            for step in self.steps
        ]
        return {**asdict(self), "steps": steps, "outcome": self.outcome, "broken": self.first_broken is not None}


def path_of(halves: Sequence[NodeTrace]) -> PacketPath:
    """The whole path; each node has told its half, or none. There is at least one that answered."""
    first = next((half.told for half in halves if half.told.steps), halves[0].told)
    sender = next((half for half in halves if _has(half, pb.TRACE_SIDE_SENDER)), None)
    receiver = next((half for half in halves if _has(half, pb.TRACE_SIDE_RECEIVER)), None)
    steps = [*_steps(sender, pb.TRACE_SIDE_SENDER), *_steps(receiver, pb.TRACE_SIDE_RECEIVER)]
    if sender is not None and receiver is not None:
        steps = [_compared(step, receiver.told.node, receiver.told.facts) for step in steps]
    path = PacketPath(first.source, first.destination, first.source_node, first.destination_node, tuple(steps))
    return replace(path, remarks=tuple(_remarks(path, is_sent=sender is not None, is_taken=receiver is not None)))


def _has(half: NodeTrace, side: "pb.TraceSide.ValueType") -> bool:
    return any(step.side == side for step in half.told.steps)


def _steps(half: NodeTrace | None, side: "pb.TraceSide.ValueType") -> Iterator[PathStep]:
    for number, told in enumerate(half.told.steps if half else ()):
        if half is None or told.side != side:
            continue
        step = PathStep(
            half.told.node,
            side == pb.TRACE_SIDE_SENDER,
            told.kind,
            told.text or "none",
            _VERDICTS.get(told.verdict, Verdict.UNKNOWN),
            told.reason,
            told.cure,
            told.owner,
            dict(told.expects),
        )
        yield _at_firewall(step, told.packet, half.firewalls[number]) if number in half.firewalls else step


def _at_firewall(step: PathStep, packet: pb.FirewallPacket, said: masq_pb2.ExplainResponse | CallFailed) -> PathStep:
    """The step with masq's word: what drops the packet, or the rule of ours that decides about its source address."""
    chain, what = packet.hook.upper(), _packet_words(packet)
    if isinstance(said, CallFailed):
        return replace(step, text=f"{chain} {what}", verdict=Verdict.UNKNOWN, reason=f"masq does not tell: {said}")
    for each in said.findings:
        text = each.evidence or f"{chain} {what}"
        reason = f"{each.problem} {each.cause}".strip()
        return replace(step, text=text, verdict=Verdict.BROKEN, reason=reason, cure=each.cure)
    missing = [rule for rule in said.rules if not rule.present]
    if packet.protocol or packet.hook == "input" or not said.rules:
        return replace(step, text=f"{chain} {what}: nothing drops it", verdict=Verdict.PASSES)
    address = "source becomes another" if said.masqueraded else "source stays"
    step = replace(step, text=f"{chain}: nothing drops it; {address}: {said.rules[-1].text}", owner="flannelette")
    if missing:
        reason = f"The firewall lacks the rule `{missing[0].text}`."
        return replace(step, verdict=Verdict.BROKEN, reason=reason, cure="flannelette masq resync")
    return replace(step, verdict=Verdict.PASSES)


def _packet_words(packet: pb.FirewallPacket) -> str:
    if packet.protocol:
        carrier = f"UDP port {packet.port}" if packet.protocol == _UDP else f"IP protocol {packet.protocol}"
        return f"{carrier} from {packet.source}"
    return f"from {packet.source}"


def _compared(step: PathStep, node: str, facts: Mapping[str, str]) -> PathStep:
    """The step, broken where the receiver is not what it expects."""
    if not step.sends or step.verdict is Verdict.BROKEN:
        return step
    for name, value in step.expects.items():
        if name in facts and facts[name] != value:
            reason = f"The {name} of {node} is {facts[name]}, and not {value}."
            return replace(step, verdict=Verdict.BROKEN, reason=reason)
    is_confirmed = any(facts.get(name) == value for name, value in step.expects.items())
    return replace(step, verdict=Verdict.PASSES, reason="", cure="") if is_confirmed else step


def _remarks(path: PacketPath, *, is_sent: bool, is_taken: bool) -> Iterable[str]:
    is_local = bool(path.source_node) and path.source_node == path.destination_node
    if not path.source_node:
        yield f"{path.source} belongs to no lease: where such packets come from is not known."
    elif not is_sent and not is_local:
        yield _missing(path.source_node, "sends")
    if not path.destination_node:
        yield f"{path.destination} belongs to no lease: the overlay does not carry packets there."
    elif not is_taken:
        yield _missing(path.destination_node, "receives")


def _missing(node: str, does: str) -> str:
    return f"How {node} {does} is not known: run this there too, or name a --context with {node} in it."


_MOST_TRACED: Final = 8
"""Largest number of pairs of nodes whose packets are followed."""


async def broken_places(nodes: Nodes, pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], PathStep]:
    """Places where packets between these ends are lost, there or back, by pair.

    Pairs for which no trace finds a place are left out.
    """

    async def one(source: str, destination: str) -> PathStep | None:
        ways = product((4, 6), ((source, destination), (destination, source)))
        for version, ends in ways:
            try:
                path = await follow_packet(nodes, *ends, version=version)
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


async def follow_packet(
    nodes: Nodes, source: str, destination: str, warn: Callable[[str], None] = lambda _: None, *, version: int = 0
) -> PacketPath:
    """Asks all nodes, of which two at most know the path. Raises CallFailed: none knows it."""
    request = pb.TracePacketRequest(source=source, destination=destination, version=version)
    answers = await of_each(nodes, lambda _, targets: or_failure(_half(targets, request)))
    halves = [answer for answer in answers.values() if isinstance(answer, NodeTrace)]
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


async def _half(targets: Targets, request: pb.TracePacketRequest) -> NodeTrace:
    told = await ask(targets["dataplane"], lambda c: DataplaneServiceStub(c).TracePacket(request), LIST_SECONDS)
    numbers = [number for number, step in enumerate(told.steps) if step.HasField("packet")]
    said = await asyncio.gather(*(_ask_firewall(targets, told.steps[number].packet) for number in numbers))
    return NodeTrace(told, dict(zip(numbers, said, strict=True)))


async def _ask_firewall(targets: Targets, packet: pb.FirewallPacket) -> masq_pb2.ExplainResponse | CallFailed:
    request = masq_pb2.ExplainRequest(
        source=packet.source,
        destination=packet.destination,
        incoming=packet.incoming,
        outgoing=packet.outgoing,
        protocol=packet.protocol,
        port=packet.port,
        hook=packet.hook,
    )
    return await or_failure(ask(targets["masq"], lambda c: MasqServiceStub(c).Explain(request), LIST_SECONDS))
