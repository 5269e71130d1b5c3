"""The problems of nodes, by weight: what `doctor` shows, and what headline and exit code of `status` say. Pure."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from enum import Enum
from typing import Any, Final, Literal

from rich.text import Text

from flannelette.lease.v1 import lease_pb2
from flannelette.services.core.conditions import ROWS, Condition, Weight, causes_of
from flannelette.services.core.conditions import found as condition
from flannelette.services.core.formats.text import count
from flannelette.services.core.frozen import frozen
from flannelette.services.ctl.connect.call import CallFailed
from flannelette.services.ctl.connect.targets import SERVICES, Service
from flannelette.services.ctl.node_health import NodeHealth, State, findings_in, status_of
from flannelette.services.ctl.screen import Width, fold, labelled, lines, moment, shown_nodes, table
from flannelette.services.runtime.conditions import conditions_from

_MOST_NAMED: Final = 10
_MOST_SKEW_SECONDS: Final = 10.0
"""Seconds between the clocks of two services that answer within 3 s; see services/dataplane/node/lease_renewer.py."""


SILENCE: Final = ("peer-tunnel", "peer-down")
"""Checks that find only that a peer does not answer."""


class Overall(Enum):
    """The state of a node or a link in a word, the gravest last."""

    HEALTHY = "healthy"
    UNKNOWN = "unknown"
    DEGRADED = "degraded"
    """A service is not ready or has a problem; packets pass, or most of them."""
    BROKEN = "broken"
    """Packets are lost now."""
    AWAY = "no answer"
    """None of the services answers."""

    @property
    def gravity(self) -> int:
        """Says how grave the state is; the largest is the worst."""
        return [*Overall].index(self)

    @property
    def is_bad(self) -> bool:
        """Whether packets are lost, or may be."""
        return self.gravity > Overall.UNKNOWN.gravity


@frozen
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
    code: str = ""
    """Code of the condition (services/core/conditions.py); empty: a service of an earlier release has told it."""
    peers: tuple[str, ...] = ()
    """The nodes of the peers that it concerns; empty: it concerns the whole node."""
    effects: tuple[str, ...] = ()
    """What else is told because of it: it goes away with this problem."""

    def document(self) -> dict[str, Any]:
        """Returns the problem as JSON; `problem` has the cause too, as it always had, and `symptom` is without it."""
        problem = f"{self.problem} {self.cause}".rstrip()
        return {**asdict(self), "problem": problem, "symptom": self.problem, "weight": self.weight.name}


def problems(node: NodeHealth, services: Collection[str] = SERVICES) -> list[Problem]:
    """The problems of the node that these services tell, the gravest first; a consequence is with its cause."""
    return merged([(node.name or "this host", _told(node, services))], named=False)


def merged(by_node: Iterable[tuple[str, Iterable[Problem]]], *, named: bool = True) -> list[Problem]:
    """The problems of several nodes, the gravest first; one that several have is told once, with their names.

    What is of the whole cluster is one problem, whoever tells it; a consequence is with its cause. An empty name:
    what concerns all of them.
    """
    found = dict[object, list[tuple[str, Problem]]]()
    for name, each_found in by_node:
        for each in sorted(each_found, key=lambda each: each.weight):
            row = ROWS.get(each.code)
            said = (each.check, each.problem, each.cause, each.cure)
            found.setdefault(each.code if row and row.is_shared else said, []).append((name, each))
    once = [
        replace(
            min((each for _, each in had), key=lambda each: each.weight),
            nodes=tuple(dict.fromkeys(name for name, _ in had if name)),
            effects=tuple(dict.fromkeys(effect for _, each in had for effect in each.effects)),
        )
        for had in found.values()
    ]
    causes, effects = causes_of([(each, each.nodes) for each in once]), dict[int, list[str]]()
    weights = [each.weight for each in once]
    for each, cause in zip(once, causes, strict=True):
        if cause is not None:  # packets that are lost are lost, however light a cause somebody tells
            row = ROWS.get(each.code)
            is_shown = row is not None and once[cause].code in row.shows
            weights[cause] = Weight.BROKEN if is_shown else min(weights[cause], each.weight)
            effect = f"{each.service}: {each.problem}" if each.service else each.problem
            effects.setdefault(cause, []).extend((effect, *each.effects))
    left = [
        replace(
            each,
            weight=weights[place],
            nodes=each.nodes if named else (),
            effects=tuple(dict.fromkeys((*each.effects, *effects.get(place, ())))),
        )
        for place, each in enumerate(once)
        if causes[place] is None
    ]
    return sorted(left, key=lambda each: (each.weight, -len(each.nodes)))


def _told(node: NodeHealth, services: Collection[str]) -> list[Problem]:
    """What these services of a node tell, and what is seen of them."""
    if not node.answered and {*services} == {*SERVICES}:  # one fault, and not three
        return [_silence(node)]
    found = [each for service in SERVICES if service in services for each in _problems(node, service)]
    if {*services} == {*SERVICES}:
        found += [*_clocks(node), *different_versions(_versions(node), "services")]
    return found


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


def own_problems(node: NodeHealth) -> list[Problem]:
    """Returns the problems of the node itself, the gravest first; that another node is down is none."""
    return [each for each in problems(node) if not each.remote]


def health_of(node: NodeHealth) -> Overall:
    """The state of the node in a word."""
    found = own_problems(node)
    if not node.answered:
        return Overall.AWAY
    if not found:
        return Overall.HEALTHY
    return Overall.BROKEN if found[0].weight is Weight.BROKEN else Overall.DEGRADED


def problem_of(service: Service | Literal[""], condition: Condition) -> Problem:
    """Makes the problem of a condition that a service tells.

    No cure that a lease service or a cloud's process tells is carried out.
    """
    return Problem(
        service,
        condition.problem,
        condition.cure if service in ("dataplane", "masq") else str(condition.cure),
        condition.evidence,
        condition.cause,
        condition.weight,
        condition.check,
        remote=condition.is_remote,
        code=condition.code,
        peers=tuple(node or lease for lease, node in condition.peers),
    )


def reported(nodes: Iterable[lease_pb2.Node]) -> Iterator[tuple[str, list[Problem]]]:
    """What the nodes have told the lease service, and what that sees of them, by node."""
    for node in nodes:
        told = conditions_from(node.conditions, node.findings)
        found = [replace(each, cure=str(each.cure)) for each in (problem_of("dataplane", each) for each in told)]
        if node.HasField("connected") and not node.connected:
            found.append(problem_of("lease", condition("ctl.not-connected")))
        elif node.failed_count:
            first = f"{node.failed[0].name}: {node.failed[0].reason}" if node.failed else ""
            failed = condition("ctl.failed-leases", count=count(node.failed_count, "lease"), first=first)
            found.append(problem_of("dataplane", failed))
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
        yield problem_of("", condition("ctl.version", who=who, evidence=said))


def version_of(node: NodeHealth) -> str:
    """The version of the node's services, of the dataplane if they differ; empty: none answers."""
    versions = _versions(node)
    return versions.get("dataplane") or next(iter(versions.values()), "")


def _versions(node: NodeHealth) -> dict[str, str]:
    answers = {service: node.answers.of(service) for service in SERVICES}
    return {name: status_of(answer).version for name, answer in answers.items() if not isinstance(answer, CallFailed)}


def _clocks(node: NodeHealth) -> Iterator[Problem]:
    """The lease service of a node may be on another host."""
    lease, dataplane = node.answers.lease, node.answers.dataplane
    if isinstance(lease, CallFailed) or isinstance(dataplane, CallFailed):
        return
    if lease.HasField("time") and dataplane.HasField("time"):
        ahead = (moment(lease.time) - moment(dataplane.time)).total_seconds()
        if abs(ahead) > _MOST_SKEW_SECONDS and not any(e.check == "clock" for e in findings_in(dataplane)):
            where, evidence = "behind" if ahead > 0 else "ahead of", "both were asked for their time at once"
            skew = condition("node.clock", seconds=f"{abs(ahead):.0f}", where=where, evidence=evidence)
            yield problem_of("dataplane", skew)


def _problems(node: NodeHealth, service: Service) -> Iterator[Problem]:
    health = node.services[service]
    yield from (problem_of(service, each) for each in health.findings)
    for remark in () if health.well else health.remarks:
        if remark in health.findings or (remark.code == "ctl.unreached" and _are_named(node)):
            continue  # a finding of each says more
        problem = problem_of(service, remark)
        if health.state is State.AWAY and not remark.cure:
            program = health.target.program
            problem = replace(problem, cure=f"start {program}, or name where it is with --{service}")
        yield problem


def _are_named(node: NodeHealth) -> bool:
    """Whether findings name all the peers that cannot be reached."""
    answer = node.answers.dataplane
    if isinstance(answer, CallFailed):
        return False
    peers, named = answer.status.peers, sum(each.peer_count for each in findings_in(answer) if each.is_broken)
    return named >= peers.failed + peers.shadowed


def _silence(node: NodeHealth) -> Problem:
    """Makes the problem of a node of which no service answers."""
    answers = [node.answers.of(service) for service in SERVICES]
    failures = [each for each in answers if isinstance(each, CallFailed)]
    reasons = dict.fromkeys(each.why.problem for each in failures)
    cure = ""
    if all(each.missing or each.why.down for each in failures):
        options = " and ".join(dict.fromkeys(option for each in failures for option in each.why.options))
        cure = "start flannelette-lease, flannelette-dataplane and flannelette-masq"
        cure += f", or check {options}" if options else ""
    return problem_of("", condition("ctl.silent", failures="; ".join(reasons), cure=cure))


_STYLES: Final = {Weight.BROKEN: "bold red", Weight.SOON: "bold yellow", Weight.WARNING: "bold"}
_COLUMN: Final = 9


def doctor_text(names: Sequence[str], found: Collection[Problem], width: Width) -> Text:
    """Prints the problems: a paragraph each on a terminal, one line each in a pipe; a sentence where there are none.

    `names` are the nodes that were asked. Which of them has a problem is told where there are several.
    """
    who = names[0] if len(names) == 1 else count(len(names), "node")
    if not found:
        return Text(f"{who}: no problems found", style="bold green")
    if width is None:
        return _lines(found, is_one=len(names) == 1)
    broken = sum(each.weight is Weight.BROKEN for each in found)
    some = "which" if len(found) == 1 else f"{broken} of them"
    parts = count(len(found), "problem") + (f", {some} {_loses(broken)} packets now" if broken else "")
    out: list[str | Text] = [fold(Text(f"{who}: {parts}", style="bold red"), width)]
    for each in found:
        head = Text().append(f"{each.weight.name:<{_COLUMN}}", _STYLES[each.weight])
        said = f"{each.service}: {each.problem}" if each.service else each.problem
        out += ["", fold(head.append(said), width, _COLUMN)]
        out += [
            labelled(label, value, width)
            for label, value in (
                ("nodes", shown_nodes(each.nodes) if len(names) > 1 else ""),
                ("cause", each.cause),
                ("evidence", each.evidence),
                ("effects", "; ".join(each.effects)),
                ("cure", Text(each.cure, style="green")),
            )
            if value
        ]
    return lines(out)


def _lines(found: Collection[Problem], *, is_one: bool) -> Text:
    rows = [
        (
            (each.weight.name,),
            *(() if is_one else ((shown_nodes(each.nodes),),)),
            (each.service,),
            (f"{each.problem} {each.cause}".strip(),),
            (each.cure,),
            (each.evidence,),
        )
        for each in found
    ]
    titles = ("WEIGHT", *(() if is_one else ("NODE",)), "SERVICE", "PROBLEM", "CURE", "EVIDENCE")
    return table(titles, rows, None)


def _loses(number: int) -> str:
    return "loses" if number == 1 else "lose"
