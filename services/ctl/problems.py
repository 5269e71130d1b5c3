"""The problems of nodes, by weight: what `doctor` shows, and what headline and exit code of `status` say. Pure."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import IntEnum
from typing import Any, Final, Literal, TypeAlias

from flannelette.cloud.v1 import cloud_pb2
from flannelette.dataplane.v1 import dataplane_pb2
from flannelette.lease.v1 import lease_pb2
from flannelette.masq.v1 import masq_pb2
from flannelette.services.core.cure import Command, read_cure
from flannelette.services.ctl.connect.call import LOOK_AT_LOG, CallFailed
from flannelette.services.ctl.connect.targets import SERVICES, Service
from flannelette.services.ctl.node_health import BROKEN, CURE, LAST_KNOWN, NO_MASQUERADE, UNREACHED, NodeHealth, State
from flannelette.services.ctl.units import count, moment

Finding: TypeAlias = dataplane_pb2.Finding | masq_pb2.Finding | lease_pb2.Finding | cloud_pb2.Finding

_MOST_NAMED: Final = 10
_START: Final = re.compile("[:;] start (?:flannelette-|it again).*")
"""What the error of a service that does not run advises."""
_OPTION: Final = re.compile("--[a-z-]+")
_MOST_SKEW_SECONDS: Final = 10.0
"""Seconds between the clocks of two services that answer within 3 s; see services/dataplane/node/own_findings.py."""


class Weight(IntEnum):
    """How much a problem matters; the gravest is the smallest."""

    BROKEN = 0
    """Packets are lost now."""
    SOON = 1
    """Packets are not lost yet; they will be if nothing is done, or at the next change."""
    WARNING = 2
    """Something is odd, or a part of the traffic may be lost."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be: symptom, cause, evidence and cure."""

    service: Service | Literal[""]
    """The service that told it, or does not answer; empty: it concerns the node, or several."""
    problem: str
    """The symptom, one sentence or two."""
    cure: str = ""
    """The exact command, where one cures it, as a Cure (services/core/cure.py) if its parts are known; else the cause
    or the problem says what to do."""
    evidence: str = ""
    """What was asked, such as of the kernel, and the answer."""
    cause: str = ""
    """One sentence; empty where the problem says it."""
    weight: Weight = Weight.WARNING
    check: str = ""
    """The check that found it, as in docs/operations.md; empty: the command line itself found it."""
    nodes: tuple[str, ...] = ()
    """The nodes that have it."""
    remote: bool = False
    """The cause is another node, and nothing is wrong with this one."""

    def document(self) -> dict[str, Any]:
        """Returns the problem as JSON; `problem` has the cause too, as it always had, and `symptom` is without it."""
        problem = f"{self.problem} {self.cause}".rstrip()
        return {**asdict(self), "problem": problem, "symptom": self.problem, "weight": self.weight.name}


def problems(node: NodeHealth, services: Collection[str] = SERVICES) -> list[Problem]:
    """The problems of the node that these services tell, the gravest first; what two of them find is told once."""
    if not node.answered and {*services} == {*SERVICES}:  # one fault, and not three
        return [_silence(node)]
    found = [each for service in SERVICES if service in services for each in _problems(node, service)]
    if {*services} == {*SERVICES}:
        found += [*_clocks(node), *different_versions(_versions(node), "services")]
    once, known = dict[tuple[str, str, str, str], Problem](), {each.cause.rstrip(".") for each in found} - {""}
    for each in sorted(found, key=lambda each: each.weight):
        if not (each.check or each.cause) and each.problem.rstrip(".") in known:
            continue  # a service passes on what another one has found
        once.setdefault((each.check, each.problem, each.cause, each.cure), each)
    return [*once.values()]


def merged(by_node: Iterable[tuple[str, Iterable[Problem]]]) -> list[Problem]:
    """The problems of several nodes, the gravest first; one that several have is told once, with their names.

    An empty name: what concerns all of them.
    """
    found: dict[Problem, list[tuple[str, str]]] = {}
    for name, each_found in by_node:
        for each in each_found:
            found.setdefault(replace(each, evidence="", nodes=()), []).append((name, each.evidence))
    return sorted(
        (
            replace(each, evidence=had[0][1], nodes=tuple(dict.fromkeys(name for name, _ in had if name)))
            for each, had in found.items()
        ),
        key=lambda each: (each.weight, -len(each.nodes)),
    )


def headline(node: NodeHealth) -> tuple[str, int]:
    """What `status` says first, and its exit code. 0: healthy. 1: there are problems. 2: no service answered."""
    name = node.name or "this host"
    if not node.answered:
        return f"{name}: no service answers", 2
    told = [each for each in problems(node) if not each.remote]
    own = [each for each in told if not (each.service == "masq" and each.check and each.weight is Weight.WARNING)]
    if not own:  # masq warns of what may be meant so, such as a host that forwards nothing yet
        return f"{name} is healthy" + (f", {count(len(told), 'warning')}: `flannelette doctor`" if told else ""), 0
    if node.broken:
        return f"{name} is not healthy: {node.broken}", 1
    is_degraded = own[0].weight is not Weight.BROKEN and all(
        health.state in (State.READY, State.ELSEWHERE) for health in node.services.values()
    )
    return f"{name} is {'degraded' if is_degraded else 'not healthy'}: {count(len(own), 'problem')}", 1


def weight_of(finding: Finding) -> Weight:
    """Returns the weight that the service gives a finding."""
    return Weight.BROKEN if finding.broken else Weight.SOON if finding.soon else Weight.WARNING


def problem_of(service: Service, finding: Finding) -> Problem:
    """A finding of a service."""
    typed = finding.commands if isinstance(finding, dataplane_pb2.Finding | masq_pb2.Finding) else ()
    commands = [Command(each.code, *each.arguments) for each in typed]
    return Problem(
        service,
        finding.problem,
        read_cure(finding.cure, commands),
        "" if isinstance(finding, cloud_pb2.Finding) else finding.evidence,
        finding.cause,
        weight_of(finding),
        finding.check,
        remote=isinstance(finding, dataplane_pb2.Finding) and finding.remote,
    )


def reported(nodes: Iterable[lease_pb2.Node]) -> Iterator[tuple[str, list[Problem]]]:
    """What the nodes have told the lease service, and what that sees of them, by node."""
    for node in nodes:
        found = [problem_of("dataplane", each) for each in node.findings]
        if node.HasField("connected") and not node.connected:
            cause = "Its dataplane does not run, or does not reach the lease service."
            found.append(Problem("lease", "The node is not connected.", cause=cause, weight=Weight.SOON))
        elif node.failed_count:
            first = f"{node.failed[0].name}: {node.failed[0].reason}" if node.failed else ""
            said = f"{count(node.failed_count, 'lease')} could not be programmed."
            found.append(Problem("dataplane", said, cause=first, weight=Weight.BROKEN))
        yield node.name, found


def different_versions(versions: Mapping[str, str], who: str) -> Iterator[Problem]:
    """Yields a problem if these services or nodes, by name, have different versions; an empty one is not known."""
    by_version: dict[str, list[str]] = {}
    for name, version in versions.items():
        if version:
            by_version.setdefault(version, []).append(name)
    if len(by_version) > 1:
        fewest = sorted(by_version.items(), key=lambda each: len(each[1]))
        said = "; ".join(
            f"{version}: {', '.join(names[:_MOST_NAMED])}" + (", ..." if len(names) > _MOST_NAMED else "")
            for version, names in fewest
        )
        cause = "An update is under way or has left something out; neighbouring releases work together."
        yield Problem("", f"The {who} have different versions.", evidence=said, cause=cause, check="version")


def version_of(node: NodeHealth) -> str:
    """The version of the node's services, of the dataplane if they differ; empty: none answers."""
    versions = _versions(node)
    return versions.get("dataplane") or next(iter(versions.values()), "")


def _versions(node: NodeHealth) -> dict[str, str]:
    found = dict[str, str]()
    for service in SERVICES:
        answer = node.answers.of(service)
        if not isinstance(answer, CallFailed):
            found[service] = (answer if isinstance(answer, lease_pb2.GetStatusResponse) else answer.status).version
    return found


def _clocks(node: NodeHealth) -> Iterator[Problem]:
    """The lease service of a node may be on another host."""
    lease, dataplane = node.answers.lease, node.answers.dataplane
    if isinstance(lease, CallFailed) or isinstance(dataplane, CallFailed):
        return
    if lease.HasField("time") and dataplane.HasField("time"):
        ahead = (moment(lease.time) - moment(dataplane.time)).total_seconds()
        if abs(ahead) > _MOST_SKEW_SECONDS and not any(each.check == "clock" for each in dataplane.status.findings):
            where = "behind" if ahead > 0 else "ahead of"
            yield Problem(
                "dataplane",
                f"The clock of this host is {abs(ahead):.0f} s {where} that of the lease service.",
                cause="One of the two is not set by NTP: `timedatectl` on both hosts says which.",
                evidence="both were asked for their time at once",
                check="clock",
            )


def _problems(node: NodeHealth, service: Service) -> Iterator[Problem]:
    health = node.services[service]
    found = [problem_of(service, each) for each in _findings(node, service)]
    yield from found
    told = {text.removesuffix(".") for each in found for text in (each.problem, each.cause)}
    for remark in () if health.well else health.remarks:
        problem, _, cure = remark.partition(CURE)
        if health.state is State.AWAY and not cure:
            yield _unanswered(node, service, remark)
        elif " store is away: " in problem and any(each.check.startswith("store-") for each in found):
            continue  # the finding says more
        elif UNREACHED in problem and _are_named(node):
            continue  # a finding of each says more
        elif not any(each and each in problem for each in told) and not (found and problem.startswith(BROKEN)):
            yield Problem(service, problem, cure, weight=_weight(node, service, problem))


def _are_named(node: NodeHealth) -> bool:
    """Whether findings name all the peers that cannot be reached."""
    answer = node.answers.dataplane
    if isinstance(answer, CallFailed):
        return False
    peers, named = answer.status.peers, sum(each.peer_count for each in answer.status.findings if each.broken)
    return named >= peers.failed + peers.shadowed


def _silence(node: NodeHealth) -> Problem:
    """Makes the problem of a node of which no service answers."""
    remarks = dict.fromkeys(remark for health in node.services.values() for remark in health.remarks)
    causes = dict.fromkeys(_START.sub("", remark) for remark in remarks)
    failures = [node.answers.of(service) for service in SERVICES]
    cure = ""
    if all(isinstance(each, CallFailed) and (each.missing or _START.search(str(each))) for each in failures):
        options = " and ".join(dict.fromkeys(_OPTION.findall(" ".join(remarks))))
        cure = "start flannelette-lease, flannelette-dataplane and flannelette-masq"
        cure += f", or check {options}" if options else ""
    return Problem("", "No service answers.", cure, cause="; ".join(causes), weight=Weight.SOON)


def _findings(node: NodeHealth, service: Service) -> Iterable[Finding]:
    answer = node.answers.of(service)
    if isinstance(answer, CallFailed):
        return ()
    return answer.findings if isinstance(answer, lease_pb2.GetStatusResponse) else answer.status.findings


def _unanswered(node: NodeHealth, service: Service, remark: str) -> Problem:
    problem, _, advice = remark.partition(": start ")
    target = node.services[service].target
    if problem.endswith(LOOK_AT_LOG):
        return Problem(service, problem.removesuffix(LOOK_AT_LOG), LOOK_AT_LOG.strip("; "), weight=Weight.SOON)
    cure = f"start {advice or f'{target.program}, or name where it is with --{service}'}"
    return Problem(service, problem, cure, weight=Weight.SOON)


_LOSES_PACKETS: Final = (BROKEN, UNREACHED, NO_MASQUERADE)


def _weight(node: NodeHealth, service: Service, remark: str) -> Weight:
    """Weighs a remark that is no finding. The kernel keeps what it has while a service cannot follow changes."""
    state, answer = node.services[service].state, node.answers.of(service)
    follows = (
        not isinstance(answer, CallFailed | lease_pb2.GetStatusResponse) and answer.status.lease_service_connected
    )
    if isinstance(answer, dataplane_pb2.GetStatusResponse):  # what waits for a store loses nothing
        follows = follows and answer.status.store_connected
    if any(sign in remark for sign in _LOSES_PACKETS) or (state is State.NOT_READY and follows):
        return Weight.BROKEN
    return Weight.SOON if state is State.NOT_READY or LAST_KNOWN in remark else Weight.WARNING
