"""The calls of flannelette.masq.v1: translate, call, return. Explain is answered from the rule model."""
# ruff: noqa: D102 - masq.proto names and documents the calls

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from ipaddress import ip_address, ip_network
from typing import Any, Final

from google.protobuf.timestamp_pb2 import Timestamp

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.masq.v1 import masq_pb2_grpc
from flannelette.services.core.conditions import Condition
from flannelette.services.core.cure import commands_of
from flannelette.services.core.errors import InvalidInput, NotImplementedYet, NotYet
from flannelette.services.core.family import Address, Network
from flannelette.services.masq import pod_guard
from flannelette.services.masq.diagnose.flows import WAYS, pings
from flannelette.services.masq.diagnose.obstacles import dropping
from flannelette.services.masq.diagnose.verdict import Flow
from flannelette.services.masq.firewalls.firewall import ChainState, RuleState
from flannelette.services.masq.firewalls.flannelds import networks_in
from flannelette.services.masq.firewalls.guard_table import GuardRule
from flannelette.services.masq.guard import CHAIN_REASONS
from flannelette.services.masq.pod_guard import POD_TABLE
from flannelette.services.masq.reconcile.clamp import CHAIN, REASON
from flannelette.services.masq.reconcile.reconciler import Reconciler
from flannelette.services.masq.rules import TRANSLATIONS, Chain, Packet, deciding_rule, explanation
from flannelette.services.runtime.conditions import condition_to_proto, older_finding
from flannelette.services.runtime.events import Journal, Reading, RecordedEvent, watch
from flannelette.services.runtime.process.version import version
from flannelette.services.runtime.telemetry.health import Health


def rules_of(state: ChainState) -> list[pb.Rule]:
    """The jump first, then the chain's rules in their order."""
    chain = state.chain
    if not chain.rules:
        return []
    rules = [_rule(chain, chain.reason, state.jump)]
    rules += [_rule(chain, r.reason, s) for r, s in zip(chain.rules, state.rules, strict=True)]
    place = state.jump.table, state.rules[0].chain
    others = (RuleState(*place, text, present=True) for text in state.others)
    return rules + [_rule(chain, "Another network's: it stays as it is.", other) for other in others]


def finding_of(condition: Condition) -> pb.Finding:
    """The condition for a command line before 0.3, and in the answer to Explain."""
    commands = [pb.CureCommand(code=each.code, arguments=each.arguments) for each in commands_of(condition.cure)]
    return older_finding(pb.Finding, condition, evidence=condition.evidence, commands=commands)


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


def _guard_rule(table: str, reasons: Mapping[str, str], rule: GuardRule, family: str = "inet") -> pb.Rule:
    return pb.Rule(
        family=family,
        table=table,
        chain=rule.chain,
        text=rule.text,
        reason=reasons[rule.chain],
        present=rule.present,
        packets=rule.packets,
        bytes=rule.bytes,
    )


def reading_of(journal: Journal, request: pb.WatchEventsRequest) -> Reading[pb.WatchEventsResponse]:
    """One call of WatchEvents. Raises InvalidInput for what it cannot look for."""
    return Reading(journal, request, request.chain, _event)


def _event(entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    return pb.WatchEventsResponse(
        chains=[pb.ChainName(name=subject.name, family=subject.of) for subject in event.subjects],
        objects=event.objects,
    )


_NO_TRACE: Final = (
    "masq no longer traces packets: `nft monitor trace` shows what the kernel does with one "
    "(docs/operations.md has the commands); Explain without `trace` answers from the rules"
)


class MasqServicer(masq_pb2_grpc.MasqServiceServicer):
    """See masq.proto for the guarantees of each call."""

    def __init__(self, reconciler: Reconciler, health: Health, stopping: asyncio.Event | None = None) -> None:
        self._reconciler = reconciler
        self._health = health
        self._stopping = stopping or asyncio.Event()
        self._start_time = time.time()

    async def GetStatus(self, request: pb.GetStatusRequest, context: Any) -> pb.GetStatusResponse:
        reconciler = self._reconciler
        inputs, settings = reconciler.inputs, reconciler.settings
        rules = [rule for state in reconciler.states for rule in state.all_rules]
        findings = [*reconciler.findings(), *self._health.findings]  # before the reasons: one may be among them
        return pb.GetStatusResponse(
            status=pb.Status(
                ready=self._health.ready,
                reasons=self._health.reasons,
                node=reconciler.node,
                version=version(),
                firewall=reconciler.firewall.name,
                firewall_reason=_firewall_reason(reconciler),
                masquerade=settings.masquerade,
                forward=settings.forward,
                networks=[str(row.cidr) for row in inputs.network.families] if inputs.network else [],
                subnets=map(str, inputs.subnets),
                rules=len(rules),
                rules_present=sum(rule.present for rule in rules),
                repairs=reconciler.repairs,
                last_check_time=_timestamp(reconciler.last_check_time),
                start_time=_timestamp(self._start_time),
                lease_service_connected=reconciler.lease_service_connected,
                findings=map(finding_of, findings),
                conditions=[condition_to_proto(each) for each in (*self._health.unready, *findings)],
                other_networks=networks_in(text for state in reconciler.states for text in state.others),
            ),
            time=_timestamp(time.time()),
        )

    async def ListRules(self, request: pb.ListRulesRequest, context: Any) -> pb.ListRulesResponse:
        states = await self._reconciler.look()
        guard = self._reconciler.guard
        clamp, pods = self._reconciler.clamp, self._reconciler.pod_guard
        of_pods = pods.rules() if pods else ()
        guarding = map(partial(_guard_rule, guard.settings.table, CHAIN_REASONS), guard.rules()) if guard else ()
        clamping = map(partial(_guard_rule, clamp.table.name, {CHAIN: REASON}), clamp.rules()) if clamp else ()
        bridging = (_guard_rule(POD_TABLE, pod_guard.CHAIN_REASONS, each, "bridge") for each in of_pods)
        rules = (rule for state in states for rule in rules_of(state))
        return pb.ListRulesResponse(rules=[*rules, *guarding, *clamping, *bridging])

    async def ResyncRules(self, request: pb.ResyncRulesRequest, context: Any) -> pb.ResyncRulesResponse:
        return pb.ResyncRulesResponse(commands=await self._reconciler.resync(dry_run=request.dry_run))

    async def TeardownRules(self, request: pb.TeardownRulesRequest, context: Any) -> pb.TeardownRulesResponse:
        return pb.TeardownRulesResponse(commands=await self._reconciler.teardown(dry_run=request.dry_run))

    async def Explain(self, request: pb.ExplainRequest, context: Any) -> pb.ExplainResponse:
        reconciler = self._reconciler
        if request.trace:
            raise NotImplementedYet(_NO_TRACE)
        hook = request.hook or "forward"
        way = WAYS.get(hook)
        if way is None:
            raise InvalidInput(f"hook {request.hook!r} does not exist: write {', '.join(WAYS)}")
        packet = _packet(request, reconciler.inputs.subnets)
        if reconciler.inputs.network is None:
            raise NotYet(reconciler.inputs.reasons(reconciler.node)[0])
        response = _explained(packet, await reconciler.look())
        if reconciler.guard:
            said = reconciler.guard.verdict(packet, hook, request.incoming, request.protocol, request.port)
            response.explanation = " ".join(filter(None, (response.explanation, said)))
        if reconciler.pod_guard:
            said = reconciler.pod_guard.verdict(packet, request.incoming)
            response.explanation = " ".join(filter(None, (response.explanation, said)))
        flow = Flow(
            ip_network(packet.source),
            ip_network(packet.destination),
            request.incoming,
            request.outgoing,
            request.protocol,
            request.port,
            is_for_us={"input": True, "forward": False}.get(hook),
            is_ours=hook == "output",
            way=way,
            name="tunnel" if request.protocol else "pods",
        )
        kind = reconciler.firewall.name if reconciler.settings.forward else ""
        checks = reconciler.host_checks()
        tables = checks.tables
        flows = [flow] if flow.protocol or hook == "forward" else pings(flow)
        found = dropping(tables, "" if flow.protocol else kind, flows, checks.surroundings(None, (), "").host)
        response.findings.extend(finding_of(each) for each in found if each.is_broken)
        return response

    def WatchEvents(self, request: pb.WatchEventsRequest, context: Any) -> AsyncIterator[pb.WatchEventsResponse]:
        reading = reading_of(self._reconciler.journal, request)
        end = "the masq service is stopping; the rules stay as they are"
        return watch(reading, self._stopping, follows=not request.no_follow, end=end)


def _firewall_reason(reconciler: Reconciler) -> str:
    is_random = reconciler.settings.fully_random
    left_out = "" if is_random else "--random-fully is left out: --ip-masq-fully-random-disable"
    guards = [guard.reason for guard in (reconciler.guard, reconciler.pod_guard) if guard]
    failure = reconciler.clamp.failure if reconciler.clamp else ""
    clamp = failure and f"TCP of pods is not kept within the MTUs of routes: {failure}"
    return "; ".join(filter(None, (reconciler.firewall.reason, left_out, *guards, clamp)))


def _explained(packet: Packet, states: Iterable[ChainState]) -> pb.ExplainResponse:
    for state in states:
        if state.chain.table == "nat" and state.chain.family.version == packet.source.version:
            place = deciding_rule(state.chain, packet)
            if place is not None:
                rule, (jump, *ours) = state.chain.rules[place], rules_of(state)
                return pb.ExplainResponse(
                    masqueraded=rule.action in TRANSLATIONS,
                    rules=[jump, ours[place]],
                    explanation=explanation(packet, rule),
                )
    return pb.ExplainResponse(masqueraded=False, explanation=explanation(packet, None))


def _packet(request: pb.ExplainRequest, own_subnets: Iterable[Network]) -> Packet:
    destination = _address("destination", request.destination)
    source = _address("source", request.source) if request.source else _a_pod(own_subnets, destination.version)
    if source.version != destination.version:
        raise InvalidInput(f"source {source} and destination {destination} must be of one address family")
    return Packet(source, destination, request.mark)


def _a_pod(own_subnets: Iterable[Network], version: int) -> Address:
    for subnet in own_subnets:
        if subnet.version == version:
            return subnet[min(2, subnet.num_addresses - 1)]  # the first is the bridge's
    raise NotYet(f"this node has no IPv{version} subnet yet, so none of its pods can be the source: name a source")


def _address(field: str, text: str) -> Address:
    try:
        return ip_address(text)
    except ValueError:
        raise InvalidInput(f"{field} {text!r} is not an IP address: write for instance 10.5.52.2") from None


def _timestamp(seconds: float | None) -> Timestamp | None:
    if seconds is None:
        return None
    timestamp = Timestamp()
    timestamp.FromMicroseconds(int(seconds * 1_000_000))
    return timestamp
