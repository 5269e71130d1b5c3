"""The problems of this node, each with its cure."""

from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass

from rich.text import Text

from services.ctl.commands.show import answers_of
from services.ctl.connect.call import CallFailed
from services.ctl.connect.targets import SERVICES, Service, Targets
from services.ctl.node_health import BROKEN, NodeHealth, State, assess
from services.ctl.render.layout import Width, fold, lines, table
from services.ctl.render.screen import Screen
from services.ctl.units import count


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be."""

    service: Service
    problem: str
    """One sentence or two."""
    cure: str = ""
    """The exact command, where one command cures it; else the problem says what to do."""
    evidence: str = ""
    """What the kernel said, where it was asked."""


async def doctor(targets: Targets, screen: Screen, services: Collection[str]) -> int:
    """Prints the problems of these services, or of all. 0: none. 1: some. 2: no service answers."""
    asked = [service for service in SERVICES if not services or service in services]
    node = assess(await answers_of(targets), targets)
    found = [problem for service in asked for problem in problems(node, service)]
    if screen.json:
        screen.show_json({"node": node.name, "ailments": [asdict(each) for each in found]})
    else:
        screen.show(doctor_text(node.name or "this host", found, screen.width))
    if all(node.services[service].state is State.AWAY for service in asked):
        return 2
    return 1 if found else 0


def problems(node: NodeHealth, service: Service) -> Iterator[Problem]:
    """The problems of one service, the gravest first."""
    health = node.services[service]
    masq, dataplane = node.answers.masq, node.answers.dataplane
    found = dataplane.status.findings if service == "dataplane" and not isinstance(dataplane, CallFailed) else ()
    others = masq.status.findings if service == "masq" and not isinstance(masq, CallFailed) else ()
    told = {finding.problem for finding in found}
    for finding in found:
        yield Problem(service, f"{finding.problem} {finding.cause}", finding.cure, finding.evidence)
    for remark in () if health.well else health.remarks:
        problem, _, cure = remark.partition("; cure: ")
        if health.state is State.AWAY and not cure:
            problem, _, advice = problem.partition(": start ")
            cure = f"start {advice or f'{health.target.program}, or name where it is with --{service}'}"
        if problem not in told and not ((found or others) and problem.startswith(BROKEN)):
            yield Problem(service, problem, cure)
    for each in others:
        yield Problem(service, f"{each.problem} {each.cause}".rstrip(), each.cure, each.evidence)


def doctor_text(name: str, found: Collection[Problem], width: Width) -> Text:
    """On a terminal each with its cure below it, else a table of one line each; a sentence where there is nothing."""
    if not found:
        return Text(f"{name}: no problems found", style="bold green")
    if width is None:
        rows = [((each.service,), (each.problem,), (each.cure,)) for each in found]
        return table(("SERVICE", "PROBLEM", "CURE"), rows, None)
    out = [Text(f"{name}: {count(len(found), 'problem')}", style="bold red")]
    for each in found:
        head = Text(f"{each.service:<10} ", style="bold") + Text(each.problem)
        out += [Text(), fold(head, width, 11)]
        if each.cure:
            out.append(fold(Text(f"           {each.cure}", style="green"), width, 13))
        if each.evidence:
            out.append(fold(Text(f"           {each.evidence}", style="dim"), width, 13))
    return lines(out)
