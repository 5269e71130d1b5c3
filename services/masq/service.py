"""The calls of flannelette.masq.v1: translate, call, return."""
# ruff: noqa: D102 - masq.proto names and documents the calls

import time
from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import Any

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.masq.v1 import masq_pb2_grpc
from google.protobuf.timestamp_pb2 import Timestamp

from services.core.errors import InvalidInput, NotImplementedYet, NotYet
from services.core.family import Address, Network
from services.masq.explain import Packet, deciding_rule, explanation
from services.masq.firewalls.firewall import ChainState, RuleState
from services.masq.reconciler import Reconciler
from services.masq.rules import Action, Chain
from services.masq.surroundings import Finding, Surroundings, findings
from services.runtime.health import Health
from services.runtime.version import version


class MasqServicer(masq_pb2_grpc.MasqServiceServicer):
    """See masq.proto for the guarantees of each call."""

    def __init__(self, reconciler: Reconciler, health: Health, look: Callable[[], Surroundings]) -> None:
        self._reconciler = reconciler
        self._look = look
        self._health = health
        self._start_time = time.time()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        reconciler = self._reconciler
        facts, settings = reconciler.facts, reconciler.settings
        rules = [rule for state in reconciler.states for rule in state.all_rules]
        return pb.GetStatusResponse(
            status=pb.Status(
                ready=self._health.ready,
                reasons=self._health.reasons,
                node=reconciler.node,
                version=version(),
                firewall=reconciler.firewall.name,
                firewall_reason=reconciler.firewall.reason
                + ("" if settings.fully_random else "; --random-fully is left out: --ip-masq-fully-random-disable"),
                masquerade=settings.masquerade,
                forward=settings.forward,
                networks=[str(row.cidr) for row in facts.network.families] if facts.network else [],
                subnets=map(str, facts.subnets),
                rules=len(rules),
                rules_present=sum(rule.present for rule in rules),
                repairs=reconciler.repairs,
                last_check_time=_timestamp(reconciler.last_check_time),
                start_time=_timestamp(self._start_time),
                lease_service_connected=reconciler.lease_service_connected,
                findings=_findings(reconciler, self._look()),
            )
        )

    async def ListRules(self, request: pb.ListRulesRequest, context: Any) -> pb.ListRulesResponse:
        states = await self._reconciler.look()
        return pb.ListRulesResponse(rules=[rule for state in states for rule in _rules(state)])

    async def ResyncRules(self, request: pb.ResyncRulesRequest, context: Any) -> pb.ResyncRulesResponse:
        return pb.ResyncRulesResponse(commands=await self._reconciler.resync(dry_run=request.dry_run))

    async def TeardownRules(self, request: pb.TeardownRulesRequest, context: Any) -> pb.TeardownRulesResponse:
        return pb.TeardownRulesResponse(commands=await self._reconciler.teardown(dry_run=request.dry_run))

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        packet = _packet(request, self._reconciler.facts.subnets)
        if request.trace:
            raise NotImplementedYet("this version cannot trace in the kernel: ask without trace")
        if self._reconciler.facts.network is None:
            raise NotYet(self._reconciler.facts.reasons(self._reconciler.node)[0])
        states = await self._reconciler.look()
        for state in states:
            if state.chain.table == "nat" and state.chain.family.version == packet.source.version:
                place = deciding_rule(state.chain, packet)
                if place is not None:
                    rule, (jump, *ours) = state.chain.rules[place], _rules(state)
                    return pb.ExplainResponse(
                        masqueraded=rule.action is Action.MASQUERADE,
                        rules=[jump, ours[place]],
                        explanation=explanation(packet, rule),
                    )
        return pb.ExplainResponse(masqueraded=False, explanation=explanation(packet, None))


def _rules(state: ChainState) -> list[pb.Rule]:
    """The jump first, then the chain's rules in their order."""
    chain = state.chain
    if not chain.rules:
        return []
    rules = [_rule(chain, chain.reason, state.jump)]
    return rules + [_rule(chain, r.reason, s) for r, s in zip(chain.rules, state.rules, strict=True)]


def _rule(chain: Chain, reason: str, rule: RuleState) -> pb.Rule:
    return pb.Rule(
        family=str(chain.family),
        table=rule.table,
        chain=rule.chain,
        text=rule.text,
        reason=reason,
        present=rule.present,
        packets=rule.packets,
        bytes=rule.bytes,
    )


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


def _findings(reconciler: Reconciler, around: Surroundings) -> list[pb.Finding]:
    network, settings, firewall = reconciler.facts.network, reconciler.settings, reconciler.firewall
    families = [row.family for row in network.families] if network else []
    found = findings(
        around,
        firewall.name,
        families,
        fully_random=settings.fully_random,
        masquerades=settings.masquerade,
    )
    problem, _, cure = firewall.leftover.partition(": ")
    found += [Finding(f"{problem}.", cure)] if problem else []
    return [pb.Finding(problem=each.problem, cure=each.cure) for each in found]


def _timestamp(seconds: float | None) -> Timestamp | None:
    if seconds is None:
        return None
    timestamp = Timestamp()
    timestamp.FromMicroseconds(int(seconds * 1_000_000))
    return timestamp
