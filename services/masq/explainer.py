"""Answers Explain: from the model, and with `trace` from the kernel."""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Final

from flannelette.masq.v1 import masq_pb2 as pb

from services.core.errors import InvalidInput, NotYet
from services.core.family import Address, Network, family_of
from services.core.network import NetworkConfig
from services.masq.explain import Packet, deciding_rule, explanation
from services.masq.firewalls.firewall import ChainState
from services.masq.firewalls.nftables.notation import family_word
from services.masq.firewalls.nftables.tracing import Observation, observe
from services.masq.firewalls.signs import Kind
from services.masq.reconciler import Reconciler
from services.masq.rules import Action
from services.masq.trace import Event, fate, is_as_explained, nothing_seen
from services.masq.wire import rules_of

_SECONDS: Final = 10.0
_LONGEST_SECONDS: Final = 60.0

_Place = tuple[str, str, str, int]
"""Family, table and chain of a rule as nftables has them, and its place in the chain."""


class Explainer:
    """Says which rule decides about a packet, and what the kernel did with one."""

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    async def explain(self, request: pb.ExplainRequest) -> pb.ExplainResponse:
        """See Explain in masq.proto. Raises the errors that it names."""
        packet, seconds = _packet(request, self._reconciler.facts.subnets), _seconds(request)
        network = self._reconciler.facts.network
        if network is None:
            raise NotYet(self._reconciler.facts.reasons(self._reconciler.node)[0])
        states = await self._reconciler.look()
        response = _explained(packet, states)
        if request.trace:
            observation = await observe(packet.source, packet.destination, seconds)
            ours = {} if self._reconciler.firewall.name == Kind.LEGACY else _ours(await self._reconciler.look())
            response.trace.CopyFrom(_traced(packet, network, states, observation, ours, seconds))
        return response


def _explained(packet: Packet, states: Iterable[ChainState]) -> pb.ExplainResponse:
    for state in states:
        if state.chain.table == "nat" and state.chain.family.version == packet.source.version:
            place = deciding_rule(state.chain, packet)
            if place is not None:
                rule, (jump, *ours) = state.chain.rules[place], rules_of(state)
                return pb.ExplainResponse(
                    masqueraded=rule.action is Action.MASQUERADE,
                    rules=[jump, ours[place]],
                    explanation=explanation(packet, rule),
                )
    return pb.ExplainResponse(masqueraded=False, explanation=explanation(packet, None))


def _traced(
    packet: Packet,
    network: NetworkConfig,
    states: Sequence[ChainState],
    seen: Observation,
    ours: Mapping[_Place, tuple[str, str]],
    seconds: float,
) -> pb.Trace:
    if seen.passage is None:
        return pb.Trace(explanation=nothing_seen(seconds, seen.older))
    passage = seen.passage
    texts = {event: _text(event, seen, ours) for event in passage.steps}
    marked = Packet(packet.source, packet.destination, passage.mark)
    masquerade = _explained(marked, states).masqueraded
    row = network.family(family_of(packet.source))
    as_explained = is_as_explained(
        passage, masquerade=masquerade, overlay=row is not None and packet.source in row.cidr
    )
    return pb.Trace(
        packet=passage.packet,
        steps=[
            pb.TraceStep(
                table=f"{event.family} {event.table}",
                chain=event.chain,
                rule=texts[event][0],
                reason=texts[event][1],
                verdict=event.verdict,
                mark=event.mark,
            )
            for event in passage.steps
        ],
        source=str(passage.source or ""),
        interface=passage.end.interface if passage.end else "",
        as_explained=as_explained,
        explanation=fate(passage, {event: text for event, (text, _) in texts.items()}, as_explained=as_explained),
    )


def _text(event: Event, seen: Observation, ours: Mapping[_Place, tuple[str, str]]) -> tuple[str, str]:
    """The rule, and its reason if it is ours."""
    if not event.rule:
        return f"policy {event.verdict}", ""
    chain = (event.family, event.table, event.chain)
    place, text = seen.rules.get(chain, {}).get(event.rule, (-1, f"rule with handle {event.rule}"))
    return ours.get((*chain, place), (text, ""))


def _ours(states: Iterable[ChainState]) -> dict[_Place, tuple[str, str]]:
    """Text and reason of our rules that are at their places."""
    found: dict[_Place, tuple[str, str]] = {}
    for state in states:
        word = family_word(state.chain.family)
        if state.jump.present and state.jump.chain == state.chain.hook:
            found[word, state.jump.table, state.jump.chain, 0] = state.jump.text, state.chain.reason
        for place, (rule, there) in enumerate(zip(state.chain.rules, state.rules, strict=True)):
            if there.present:
                found[word, there.table, there.chain, place] = there.text, rule.reason
    return found


def _seconds(request: pb.ExplainRequest) -> float:
    seconds = request.trace_time.ToMicroseconds() / 1e6 if request.HasField("trace_time") else _SECONDS
    if not 1 <= seconds <= _LONGEST_SECONDS:
        raise InvalidInput(f"trace_time is {seconds:g} s: use 1 to {_LONGEST_SECONDS:g} s")
    return seconds


def _packet(request: pb.ExplainRequest, own_subnets: Iterable[Network]) -> Packet:
    destination = _address("destination", request.destination)
    source = _address("source", request.source) if request.source else _a_pod(own_subnets, destination.version)
    if source.version != destination.version:
        raise InvalidInput(f"source {source} and destination {destination} must be of one address family")
    return Packet(source, destination, request.mark)


def _a_pod(own_subnets: Iterable[Network], version: int) -> Address:
    for subnet in own_subnets:
        if subnet.version == version:
            return subnet[2]  # the first is the bridge's
    raise NotYet(f"this node has no IPv{version} subnet yet, so none of its pods can be the source: name a source")


def _address(field: str, text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError:
        raise InvalidInput(f"{field} {text!r} is no IP address: write for instance 10.5.52.2") from None
