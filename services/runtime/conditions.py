"""Conditions as messages: to clients, to the lease service, and for command lines before 0.3."""

from collections.abc import Callable, Iterable
from typing import Final, Protocol, TypeVar

from flannelette.condition.v1 import condition_pb2 as pb
from flannelette.services.core.conditions import BROKEN, SOON, WARNING, Condition, Weight
from flannelette.services.core.cure import Command, commands_of, read_cure

_MOST_NAMED: Final = 10
_WEIGHTS: Final = {BROKEN: pb.WEIGHT_BROKEN, SOON: pb.WEIGHT_SOON, WARNING: pb.WEIGHT_WARNING}
_READ: Final[dict[int, Weight]] = {number: weight for weight, number in _WEIGHTS.items()}

M = TypeVar("M")


class OlderFinding(Protocol):
    """The message of 0.2 for a problem, as each service has its own."""

    problem: str
    cause: str
    cure: str
    check: str
    broken: bool
    soon: bool


def condition_to_proto(condition: Condition) -> pb.Condition:
    """Returns the message of a condition, with its finished text."""
    named = () if condition.is_general else condition.peers
    return pb.Condition(
        code=condition.code,
        arguments=dict(condition.arguments),
        weight=_WEIGHTS[condition.weight],
        check=condition.check,
        problem=condition.problem,
        cause=condition.cause,
        cure=condition.cure,
        commands=[pb.Command(code=each.code, arguments=each.arguments) for each in commands_of(condition.cure)],
        evidence=condition.evidence,
        peers=[node or lease for lease, node in named[:_MOST_NAMED]],
        peer_count=max(len(named), condition.peer_count),
        remote=condition.is_remote,
    )


def condition_from_proto(message: pb.Condition) -> Condition:
    """Returns the condition in a message, however long its texts; a code may be unknown here."""
    return Condition(
        message.code,
        tuple(sorted(message.arguments.items())),
        read_cure(message.cure, [Command(each.code, *each.arguments) for each in message.commands]),
        message.evidence,
        _READ.get(message.weight, WARNING),
        tuple(("", node) for node in message.peers),
        is_remote=message.remote,
        peer_count=message.peer_count,
        told=(message.check, message.problem, message.cause),
    )


def older_finding(make: Callable[..., M], condition: Condition, **more: object) -> M:
    """Returns the condition as the message of 0.2 that `make` makes; `more` are fields that not all services have."""
    return make(
        problem=condition.problem,
        cure=condition.cure,
        check=condition.check,
        cause=condition.cause,
        broken=condition.is_broken,
        soon=condition.is_soon,
        **more,
    )


def older_condition(finding: OlderFinding) -> Condition:
    """Returns the condition in a message of 0.2: text without a code."""
    weight = BROKEN if finding.broken else SOON if finding.soon else WARNING
    return Condition(
        "",
        cure=read_cure(finding.cure, [Command(e.code, *e.arguments) for e in getattr(finding, "commands", ())]),
        evidence=getattr(finding, "evidence", ""),
        weight=weight,
        peers=tuple(("", node) for node in getattr(finding, "peers", ())),
        is_remote=getattr(finding, "remote", False),
        peer_count=getattr(finding, "peer_count", 0),
        told=(finding.check, finding.problem, finding.cause),
    )


def conditions_from(messages: Iterable[pb.Condition], findings: Iterable[OlderFinding] = ()) -> list[Condition]:
    """Returns the conditions of an answer; `findings` are what a service of 0.2 has said instead."""
    return [*map(condition_from_proto, messages)] or [*map(older_condition, findings)]
