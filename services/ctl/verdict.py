"""What the answers of a node's services mean together. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeAlias

from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2

from services.ctl.connect.call import CallFailed
from services.ctl.connect.targets import Service, Target
from services.ctl.units import count

BROKEN: Final = "forwarding is broken: "
"""How a service begins the reason why no packet gets through."""


class State(Enum):
    """How a service is."""

    READY = "ready"
    NOT_READY = "not ready"
    AWAY = "away"
    """It should answer, and does not."""
    ELSEWHERE = "not here"
    """It does not run here, and need not."""


Answer: TypeAlias = (
    lease_pb2.GetStatusResponse | dataplane_pb2.GetStatusResponse | masq_pb2.GetStatusResponse | CallFailed
)


@dataclass(frozen=True, slots=True)
class Answers:
    """What each service said of itself, or why it did not."""

    lease: lease_pb2.GetStatusResponse | CallFailed
    dataplane: dataplane_pb2.GetStatusResponse | CallFailed
    masq: masq_pb2.GetStatusResponse | CallFailed

    def of(self, service: Service) -> Answer:
        """What this service said."""
        answer: Answer = getattr(self, service)
        return answer


@dataclass(frozen=True, slots=True)
class Standing:
    """One service, judged."""

    target: Target
    state: State
    remarks: tuple[str, ...] = ()
    """What is wrong, or why nothing is although the service is not here; one sentence each."""
    well: bool = False
    """Nothing has to be done about it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The whole node, judged."""

    answers: Answers
    standings: Mapping[Service, Standing]

    @property
    def node(self) -> str:
        """Its name; empty on the host of a central lease service, and when nobody answers."""
        return _node(self.answers)

    @property
    def healthy(self) -> bool:
        """Everything that should run here is ready."""
        return self.answered and all(standing.well for standing in self.standings.values())

    @property
    def answered(self) -> bool:
        """At least one service answered."""
        return any(s.state in (State.READY, State.NOT_READY) for s in self.standings.values())

    @property
    def broken(self) -> str:
        """Why no packet gets through, if a service says so for certain; empty: none does."""
        remarks = (remark for standing in self.standings.values() for remark in standing.remarks)
        return next((remark for remark in remarks if remark.startswith(BROKEN)), "")

    @property
    def exit_code(self) -> int:
        """0: healthy. 1: not. 2: nobody answered, so who knows."""
        if not self.answered:
            return 2
        return 0 if self.healthy else 1


def judge(answers: Answers, targets: Mapping[Service, Target]) -> Verdict:
    """Judges a node by what its services say.

    A service without a socket is away, with two exceptions, provided the user named no address for it:
    * The lease service may be central. It is elsewhere if the dataplane is connected to one.
    * The host of a central lease service (its socket is here, and it serves no node) may have neither dataplane nor
      masq. One that the user named says nothing about this host.
    """
    answer = answers.lease
    central_here = not isinstance(answer, CallFailed) and not answer.node and not targets["lease"].named
    return Verdict(
        answers,
        {
            "lease": _lease(answers, targets["lease"]),
            "dataplane": _dataplane(answers, targets["dataplane"], central_here=central_here),
            "masq": _masq(answers, targets["masq"], central_here=central_here),
        },
    )


def _lease(answers: Answers, target: Target) -> Standing:
    answer = answers.lease
    if not isinstance(answer, CallFailed):
        doubts = []
        if answer.network_error:
            doubts.append(f"the stored network configuration is not in force: {answer.network_error}")
        if answer.quarantined:
            refused = count(answer.quarantined, "key")
            doubts.append(f"{refused} of the store refused: `flannelette quarantine` says why")
        if answer.held_removals:
            doubts.append(f"{answer.held_reason} (`flannelette confirm-removal`)")
        if answer.pending_moves and not answer.node:
            nodes, first = count(len(answer.pending_moves), "node"), answer.pending_moves[0].node
            doubts.append(f"network change pending for {nodes}, which keep their subnets{_renumber(answer, first)}")
        return _own_word(target, answer.ready, answer.reasons, doubts)
    if answer.missing and not target.named:
        dataplane = answers.dataplane
        if not isinstance(dataplane, CallFailed) and dataplane.status.lease_service_connected:
            hint = "the dataplane is connected to a lease service elsewhere; name it with --lease to see it"
            return Standing(target, State.ELSEWHERE, (hint,), well=True)
        if not isinstance(dataplane, CallFailed):
            more = "if the lease service is elsewhere, the dataplane cannot reach it (its --lease-address)"
            return Standing(target, State.AWAY, (str(answer), more))
    return Standing(target, State.AWAY, (str(answer),))


def _dataplane(answers: Answers, target: Target, *, central_here: bool) -> Standing:
    answer = answers.dataplane
    if isinstance(answer, CallFailed):
        return _away(answers, target, answer, central_here=central_here)
    status = answer.status
    doubts = []
    if not status.lease_service_connected:
        doubts.append("no connection to the lease service: the leases are the last ones known")
    elif not status.store_connected:
        doubts.append("the lease service has lost its store: the leases are the last ones known")
    if status.pending:
        doubts.append(f"{status.pending}{_renumber(answers.lease, status.node)}")
    unreached = status.peers.failed + status.peers.shadowed
    if unreached:
        doubts.append(f"{unreached} of {status.peers.total} peers cannot be reached: `flannelette peers` says why")
    doubts += [finding.problem for finding in status.findings]
    return _own_word(target, status.ready, status.reasons, doubts)


def _renumber(lease: lease_pb2.GetStatusResponse | CallFailed, node: str) -> str:
    """What carries out a change that is pending, if anything does: nobody moves a podCIDR."""
    is_kube = not isinstance(lease, CallFailed) and lease.store.kind == "kube"
    return "; put the configuration back" if is_kube else f"; cure: flannelette renumber --node {node}"


def _masq(answers: Answers, target: Target, *, central_here: bool) -> Standing:
    answer = answers.masq
    if isinstance(answer, CallFailed):
        return _away(answers, target, answer, central_here=central_here)
    status = answer.status
    doubts = []
    if not status.lease_service_connected:
        doubts.append("no connection to the lease service: the network and the lease are the last ones known")
    dataplane = answers.dataplane
    if not isinstance(dataplane, CallFailed) and dataplane.status.ip_masq != status.masquerade:
        doubts.append(_different(masquerade=status.masquerade))
    return _own_word(target, status.ready, status.reasons, doubts)


def _different(*, masquerade: bool) -> str:
    """What --ip-masq leads to where only one of the two services has it."""
    if masquerade:
        return (
            "--ip-masq is true here and false on the dataplane, so the CNI plugin masquerades too; "
            "cure: flannelette-dataplane --ip-masq"
        )
    return (
        "--ip-masq is false here and true on the dataplane, so no rule masquerades what pods send to the outside; "
        "cure: flannelette-masq --ip-masq"
    )


def _away(answers: Answers, target: Target, failure: CallFailed, *, central_here: bool) -> Standing:
    alone = all(isinstance(a, CallFailed) and a.missing for a in (answers.dataplane, answers.masq))
    if central_here and alone and not target.named:
        return Standing(
            target, State.ELSEWHERE, ("the lease service is central; this is not one of its nodes",), True
        )
    return Standing(target, State.AWAY, (str(failure),))


def _own_word(target: Target, ready: bool, reasons: Iterable[str], doubts: Iterable[str] = ()) -> Standing:
    """What the service says of itself; if it says that all is well, what speaks against that."""
    remarks = (*reasons,) if not ready else (*doubts,)
    return Standing(target, State.READY if ready else State.NOT_READY, remarks, well=ready and not remarks)


def _node(answers: Answers) -> str:
    if not isinstance(answers.dataplane, CallFailed):
        return answers.dataplane.status.node
    if not isinstance(answers.masq, CallFailed):
        return answers.masq.status.node
    return "" if isinstance(answers.lease, CallFailed) else answers.lease.node
