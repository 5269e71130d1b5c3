"""The health of a node, from the answers of its services. Pure."""

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import TypeAlias

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.conditions import Condition, Weight, found, is_unready
from flannelette.services.core.formats.text import count
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.connect.targets import Service, Target
from flannelette.services.runtime.conditions import condition_from_proto, conditions_from


class State(Enum):
    """The state of a service."""

    READY = "ready"
    NOT_READY = "not ready"
    AWAY = "away"
    """The service should answer, and does not."""
    ELSEWHERE = "not here"
    """The service does not run on this host, and need not."""


Reply: TypeAlias = lease_pb2.GetStatusResponse | dataplane_pb2.GetStatusResponse | masq_pb2.GetStatusResponse
Answer: TypeAlias = Reply | CallFailed


@frozen
class Answers:
    """The status of each service, or why it did not answer."""

    lease: lease_pb2.GetStatusResponse | CallFailed
    dataplane: dataplane_pb2.GetStatusResponse | CallFailed
    masq: masq_pb2.GetStatusResponse | CallFailed

    def of(self, service: Service) -> Answer:
        """The answer of one service."""
        answer: Answer = getattr(self, service)
        return answer


@frozen
class ServiceHealth:
    """The health of one service."""

    target: Target
    state: State
    remarks: tuple[Condition, ...] = ()
    """The faults, or why the service need not run here."""
    findings: tuple[Condition, ...] = ()
    """The problems that the service has found."""
    well: bool = False
    """Whether there is nothing to do about the service."""


@frozen
class NodeHealth:
    """The health of the whole node."""

    answers: Answers
    services: Mapping[Service, ServiceHealth]

    @property
    def name(self) -> str:
        """The name of the node; empty on the host of a central lease service, and if no service answers."""
        return _node(self.answers)

    @property
    def healthy(self) -> bool:
        """Whether all services that should run here are ready."""
        return self.answered and all(health.well for health in self.services.values())

    @property
    def answered(self) -> bool:
        """Whether a service answered."""
        return any(s.state in (State.READY, State.NOT_READY) for s in self.services.values())

    @property
    def broken(self) -> str:
        """Why no packet is forwarded, if a service reports that; empty: none does."""
        remarks = (remark for health in self.services.values() for remark in health.remarks)
        return next((remark.problem for remark in remarks if remark.code == "unready.forwarding"), "")

    @property
    def exit_code(self) -> int:
        """0: healthy. 1: not healthy. 2: no service answered."""
        if not self.answered:
            return 2
        return 0 if self.healthy else 1


def assess(answers: Answers, targets: Mapping[Service, Target]) -> NodeHealth:
    """The health of a node, from the answers of its services.

    A service without a socket is away, with two exceptions, provided the user named no address for it:
    * The lease service may be central. It is elsewhere if the dataplane is connected to one.
    * The host of a central lease service (its socket is here, and it serves no node) may have neither dataplane nor
      masq, unless one of them has run here. A lease service that the user named says nothing about this host.
    """
    answer = answers.lease
    central_here = (
        not isinstance(answer, CallFailed)
        and not answer.node
        and not targets["lease"].named
        and not any(targets[service].has_run for service in ("dataplane", "masq"))
    )
    return NodeHealth(
        answers,
        {
            "lease": _lease(answers, targets["lease"]),
            "dataplane": _dataplane(answers, targets["dataplane"], central_here=central_here),
            "masq": _masq(answers, targets["masq"], central_here=central_here),
        },
    )


def _lease(answers: Answers, target: Target) -> ServiceHealth:
    answer = answers.lease
    if not isinstance(answer, CallFailed):
        remarks = []
        if answer.network_error:
            remarks.append(found("ctl.configuration", error=answer.network_error))
        if answer.quarantined:
            remarks.append(found("ctl.quarantine", count=count(answer.quarantined, "key")))
        if answer.held_removals:
            remarks.append(found("ctl.held", reason=answer.held_reason))
        if answer.pending_moves and not answer.node:
            advice, cure = _renumber(answer, answer.pending_moves[0].node)
            nodes = count(len(answer.pending_moves), "node")
            remarks.append(found("ctl.moves", count=nodes, advice=advice, cure=cure))
        return _reported(target, answer, remarks)
    if answer.missing and not target.named:
        dataplane = answers.dataplane
        if not isinstance(dataplane, CallFailed) and dataplane.status.lease_service_connected:
            return ServiceHealth(target, State.ELSEWHERE, (found("ctl.elsewhere"),), well=True)
        if not isinstance(dataplane, CallFailed):
            return ServiceHealth(target, State.AWAY, (silence_of(answer), found("ctl.unconnected")))
    return ServiceHealth(target, State.AWAY, (silence_of(answer),))


def _dataplane(answers: Answers, target: Target, *, central_here: bool) -> ServiceHealth:
    answer = answers.dataplane
    if isinstance(answer, CallFailed):
        return _away(answers, target, answer, central_here=central_here)
    status = answer.status
    remarks = []
    if not status.lease_service_connected:
        remarks.append(found("ctl.leases-kept"))
    elif not status.store_connected:
        remarks.append(found("ctl.store-lost"))
    if status.pending:
        advice, cure = _renumber(answers.lease, status.node)
        remarks.append(found("ctl.move", pending=status.pending, advice=advice, cure=cure))
    unreached = status.peers.failed + status.peers.shadowed
    if unreached:
        remarks.append(found("ctl.unreached", count=unreached, total=status.peers.total))
    remarks += [each for each in findings_in(answer) if not each.is_remote]
    return _reported(target, answer, remarks)


def _renumber(lease: lease_pb2.GetStatusResponse | CallFailed, node: str) -> tuple[str, str]:
    """Advice and cure for a pending network change; with Kubernetes, a podCIDR cannot be moved."""
    is_kube = not isinstance(lease, CallFailed) and lease.store.kind == "kube"
    return ("; put the configuration back", "") if is_kube else ("", f"flannelette renumber --node {node}")


def _masq(answers: Answers, target: Target, *, central_here: bool) -> ServiceHealth:
    answer = answers.masq
    if isinstance(answer, CallFailed):
        return _away(answers, target, answer, central_here=central_here)
    status = answer.status
    remarks = []
    if not status.lease_service_connected:
        remarks.append(found("ctl.rules-kept"))
    dataplane = answers.dataplane
    if not isinstance(dataplane, CallFailed) and dataplane.status.ip_masq != status.masquerade:
        remarks.append(
            found("ctl.masquerade-twice", cure="flannelette-dataplane --ip-masq")
            if status.masquerade
            else found("ctl.masquerade-nowhere", cure="flannelette-masq --ip-masq")
        )
    return _reported(target, answer, remarks)


def _away(answers: Answers, target: Target, failure: CallFailed, *, central_here: bool) -> ServiceHealth:
    alone = all(isinstance(a, CallFailed) and a.missing for a in (answers.dataplane, answers.masq))
    if central_here and alone and not target.named:
        return ServiceHealth(target, State.ELSEWHERE, (found("ctl.central"),), well=True)
    return ServiceHealth(target, State.AWAY, (silence_of(failure),))


def silence_of(failure: CallFailed) -> Condition:
    """Makes the condition that a service does not answer, with what to do about it as the cure."""
    return found("ctl.away", failure=failure.why.problem, cure=failure.why.advice)


def words_of(remark: Condition, separator: str = "; cure: ") -> str:
    """A remark on one line; what a service has found is shown with its cure elsewhere."""
    if remark.check:
        return remark.problem
    if remark.code == "ctl.away":
        separator = ": "
    return f"{remark.problem}{separator}{remark.cure}" if remark.cure else remark.problem


def status_of(answer: Reply) -> lease_pb2.GetStatusResponse | dataplane_pb2.Status | masq_pb2.Status:
    """The part of an answer that is the status itself."""
    return answer if isinstance(answer, lease_pb2.GetStatusResponse) else answer.status


def findings_in(answer: Answer) -> tuple[Condition, ...]:
    """The problems that a service has found; none if it does not answer."""
    if isinstance(answer, CallFailed):
        return ()
    status = status_of(answer)
    told = conditions_from(status.conditions, status.findings)
    return tuple(each for each in told if not is_unready(each.code))


def _reasons_in(answer: Reply) -> tuple[Condition, ...]:
    """Why a service is not ready. What waits for the lease service, or for the store, loses nothing yet."""
    status = status_of(answer)
    told = tuple(each for each in map(condition_from_proto, status.conditions) if is_unready(each.code))
    if told:
        return told
    follows = not isinstance(status, lease_pb2.GetStatusResponse) and status.lease_service_connected
    if isinstance(status, dataplane_pb2.Status):
        follows = follows and status.store_connected
    weight = Weight.BROKEN if follows else Weight.SOON
    return tuple(found("unready.service", reason=reason, weight=weight) for reason in status.reasons)


def _reported(target: Target, answer: Reply, remarks: Iterable[Condition]) -> ServiceHealth:
    """The health that a service reports; of a ready service, with the remarks found here."""
    ready = status_of(answer).ready
    remarks = (*remarks,) if ready else _reasons_in(answer)
    state = State.READY if ready else State.NOT_READY
    return ServiceHealth(target, state, remarks, findings_in(answer), well=ready and not remarks)


def _node(answers: Answers) -> str:
    if not isinstance(answers.dataplane, CallFailed):
        return answers.dataplane.status.node
    if not isinstance(answers.masq, CallFailed):
        return answers.masq.status.node
    return "" if isinstance(answers.lease, CallFailed) else answers.lease.node
