"""The health of a node, from the answers of its services. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.connect.targets import Service, Target
from flannelette.services.ctl.units import count

CURE: Final = "\ncure: "
"""Before the cure in a remark of this module: text from a service has no end of a line, and forges none."""
BROKEN: Final = "forwarding is broken: "
"""Prefix of a service's reason when no packet is forwarded."""
LAST_KNOWN: Final = "the last ones known"
"""In the remark about a service that cannot follow changes."""
NO_MASQUERADE: Final = "so no rule masquerades what pods send to the outside"
"""In the remark about a masq that leaves out what the dataplane counts on."""
UNREACHED: Final = "peers cannot be reached"
"""In the remark about peers that get no packets."""


class State(Enum):
    """The state of a service."""

    READY = "ready"
    NOT_READY = "not ready"
    AWAY = "away"
    """The service should answer, and does not."""
    ELSEWHERE = "not here"
    """The service does not run on this host, and need not."""


Answer: TypeAlias = (
    lease_pb2.GetStatusResponse | dataplane_pb2.GetStatusResponse | masq_pb2.GetStatusResponse | CallFailed
)


@dataclass(frozen=True, slots=True)
class Answers:
    """The status of each service, or why it did not answer."""

    lease: lease_pb2.GetStatusResponse | CallFailed
    dataplane: dataplane_pb2.GetStatusResponse | CallFailed
    masq: masq_pb2.GetStatusResponse | CallFailed

    def of(self, service: Service) -> Answer:
        """The answer of one service."""
        answer: Answer = getattr(self, service)
        return answer


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """The health of one service."""

    target: Target
    state: State
    remarks: tuple[str, ...] = ()
    """The faults, or why the service need not run here; one sentence each."""
    well: bool = False
    """Whether there is nothing to do about the service."""


@dataclass(frozen=True, slots=True)
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
        return next((remark for remark in remarks if remark.startswith(BROKEN)), "")

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
            remarks.append(f"the stored network configuration is not in force: {answer.network_error}")
        if answer.quarantined:
            refused = count(answer.quarantined, "key")
            remarks.append(f"{refused} of the store refused: `flannelette quarantine` says why")
        if answer.held_removals:
            remarks.append(f"{answer.held_reason} (`flannelette confirm-removal`)")
        if answer.pending_moves and not answer.node:
            nodes, first = count(len(answer.pending_moves), "node"), answer.pending_moves[0].node
            remarks.append(f"network change pending for {nodes}, which keep their subnets{_renumber(answer, first)}")
        return _reported(target, answer.ready, answer.reasons, remarks)
    if answer.missing and not target.named:
        dataplane = answers.dataplane
        if not isinstance(dataplane, CallFailed) and dataplane.status.lease_service_connected:
            hint = "the dataplane is connected to a lease service elsewhere; name it with --lease to see it"
            return ServiceHealth(target, State.ELSEWHERE, (hint,), well=True)
        if not isinstance(dataplane, CallFailed):
            more = "if the lease service is elsewhere, the dataplane cannot reach it (its --lease-address)"
            return ServiceHealth(target, State.AWAY, (str(answer), more))
    return ServiceHealth(target, State.AWAY, (str(answer),))


def _dataplane(answers: Answers, target: Target, *, central_here: bool) -> ServiceHealth:
    answer = answers.dataplane
    if isinstance(answer, CallFailed):
        return _away(answers, target, answer, central_here=central_here)
    status = answer.status
    remarks = []
    if not status.lease_service_connected:
        remarks.append(f"no connection to the lease service: the leases are {LAST_KNOWN}")
    elif not status.store_connected:
        remarks.append(f"the lease service has lost its store: the leases are {LAST_KNOWN}")
    if status.pending:
        remarks.append(f"{status.pending}{_renumber(answers.lease, status.node)}")
    unreached = status.peers.failed + status.peers.shadowed
    if unreached:
        remarks.append(f"{unreached} of {status.peers.total} {UNREACHED}: `flannelette peers` says why")
    remarks += [finding.problem for finding in status.findings if not finding.remote]
    return _reported(target, status.ready, status.reasons, remarks)


def _renumber(lease: lease_pb2.GetStatusResponse | CallFailed, node: str) -> str:
    """The remedy for a pending network change; with Kubernetes, a podCIDR cannot be moved."""
    is_kube = not isinstance(lease, CallFailed) and lease.store.kind == "kube"
    return "; put the configuration back" if is_kube else f"{CURE}flannelette renumber --node {node}"


def _masq(answers: Answers, target: Target, *, central_here: bool) -> ServiceHealth:
    answer = answers.masq
    if isinstance(answer, CallFailed):
        return _away(answers, target, answer, central_here=central_here)
    status = answer.status
    remarks = []
    if not status.lease_service_connected:
        remarks.append(f"no connection to the lease service: the network and the lease are {LAST_KNOWN}")
    dataplane = answers.dataplane
    if not isinstance(dataplane, CallFailed) and dataplane.status.ip_masq != status.masquerade:
        remarks.append(_different(masquerade=status.masquerade))
    return _reported(target, status.ready, status.reasons, remarks)


def _different(*, masquerade: bool) -> str:
    """The consequence if only one of dataplane and masq has --ip-masq."""
    if masquerade:
        return (
            "--ip-masq is true here and false on the dataplane, so the CNI plugin masquerades too"
            f"{CURE}flannelette-dataplane --ip-masq"
        )
    return f"--ip-masq is false here and true on the dataplane, {NO_MASQUERADE}{CURE}flannelette-masq --ip-masq"


def _away(answers: Answers, target: Target, failure: CallFailed, *, central_here: bool) -> ServiceHealth:
    alone = all(isinstance(a, CallFailed) and a.missing for a in (answers.dataplane, answers.masq))
    if central_here and alone and not target.named:
        return ServiceHealth(
            target, State.ELSEWHERE, ("the lease service is central; this is not one of its nodes",), True
        )
    return ServiceHealth(target, State.AWAY, (str(failure),))


def _reported(target: Target, ready: bool, reasons: Iterable[str], remarks: Iterable[str] = ()) -> ServiceHealth:
    """The health that a service reports; of a ready service, with the remarks found here."""
    remarks = (*reasons,) if not ready else (*remarks,)
    return ServiceHealth(target, State.READY if ready else State.NOT_READY, remarks, well=ready and not remarks)


def _node(answers: Answers) -> str:
    if not isinstance(answers.dataplane, CallFailed):
        return answers.dataplane.status.node
    if not isinstance(answers.masq, CallFailed):
        return answers.masq.status.node
    return "" if isinstance(answers.lease, CallFailed) else answers.lease.node
