"""Rules, findings and events as masq.proto has them."""

from flannelette.masq.v1 import masq_pb2 as pb
from flannelette.services.core.conditions import Condition
from flannelette.services.core.cure import commands_of
from flannelette.services.masq.firewalls.firewall import ChainState, RuleState
from flannelette.services.masq.rules.model import Chain
from flannelette.services.runtime.conditions import older_finding
from flannelette.services.runtime.events import Journal, Reading, RecordedEvent


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


def reading_of(journal: Journal, request: pb.WatchEventsRequest) -> Reading[pb.WatchEventsResponse]:
    """One call of WatchEvents. Raises InvalidInput for what it cannot look for."""
    return Reading(journal, request, request.chain, _event)


def _event(entry: RecordedEvent) -> pb.WatchEventsResponse:
    event = entry.event
    return pb.WatchEventsResponse(
        chains=[pb.ChainName(name=subject.name, family=subject.of) for subject in event.subjects],
        objects=event.objects,
    )
