"""The commands of `flannelette cloud`: the routes in the cloud's tables, and what would change them."""

from dataclasses import replace

from rich.text import Text

from flannelette.cloud.v1 import cloud_pb2 as pb
from flannelette.cloud.v1.cloud_pb2_grpc import CloudServiceStub
from flannelette.services.core.conditions import found as condition
from flannelette.services.core.conditions import is_unready
from flannelette.services.ctl.connect.call import LIST_SECONDS, LONG_SECONDS, CallFailed, ask
from flannelette.services.ctl.connect.targets import Target, Targets, cloud_beside
from flannelette.services.ctl.problems import Problem, problem_of
from flannelette.services.ctl.render.changes import plan_text
from flannelette.services.ctl.render.layout import Width, fold, lines, table
from flannelette.services.ctl.render.screen import Screen
from flannelette.services.ctl.units import count, phrase
from flannelette.services.runtime.conditions import conditions_from

_TITLES = ("DESTINATION", "NODE", "TABLE", "TARGET", "STATE", "PROBLEM")


def cloud_target(targets: Targets, address: str | None) -> Target:
    """The process at this address, else beside the sockets of the other services. Raises CallFailed."""
    if address:
        return replace(targets["lease"], service="cloud", address=address, named=True, dialer=None)
    if beside := cloud_beside(targets):
        return beside
    raise CallFailed("the services of this context have no socket here: give --address of flannelette-cloud")


async def status(target: Target, screen: Screen) -> int:
    """Each route. 1 if the service is not ready, or a route does not carry its node's packets."""
    response = await ask(target, lambda c: CloudServiceStub(c).GetStatus(pb.GetStatusRequest()), LIST_SECONDS)
    screen.answer(response, lambda: status_text(response, screen.width))
    return 0 if response.ready and not any(route.node and route.problem for route in response.routes) else 1


async def diff(target: Target, screen: Screen) -> int:
    """What a sync would do, as the provider's commands. 0 if nothing, 1 if something, 2 if it could not be said."""
    try:
        return await sync(target, screen, dry_run=True)
    except CallFailed as failure:
        screen.warn(str(failure))
        return 2


async def sync(target: Target, screen: Screen, *, dry_run: bool) -> int:
    """Writes the routes now. 1 if a dry run finds something to do."""
    request = pb.SyncRoutesRequest(dry_run=dry_run)
    done = await ask(target, lambda c: CloudServiceStub(c).SyncRoutes(request), LONG_SECONDS)
    screen.answer(done, lambda: plan_text("cloud", done, dry_run=dry_run))
    return int(dry_run and bool(done.commands))


async def teardown(target: Target, screen: Screen, *, dry_run: bool) -> int:
    """Removes our routes from the cloud's tables."""
    request = pb.TeardownRoutesRequest(dry_run=dry_run)
    done = await ask(target, lambda c: CloudServiceStub(c).TeardownRoutes(request), LONG_SECONDS)
    screen.answer(done, lambda: plan_text("cloud", done, dry_run=dry_run))
    return 0


async def problems(target: Target) -> list[Problem]:
    """What the service finds, and why it is not ready."""
    try:
        answer = await ask(target, lambda c: CloudServiceStub(c).GetStatus(pb.GetStatusRequest()), LIST_SECONDS)
    except CallFailed as failure:
        return [problem_of("cloud", condition("ctl.away", failure=failure))]
    told = conditions_from(answer.conditions, answer.findings)
    reasons = [each.problem for each in told if is_unready(each.code)] or answer.reasons
    found = [each for each in told if not is_unready(each.code)]
    # A route that cannot be written, or a refusal of the provider, is the reason too.
    away = () if found else (condition("ctl.cloud", reason=each) for each in reasons)
    return [problem_of("cloud", each) for each in (*found, *away)]


def status_text(answer: pb.GetStatusResponse, width: Width) -> Text:
    """Shows readiness, routes and findings."""
    state = ("paused", "yellow") if answer.paused else ("ready", "green") if answer.ready else ("not ready", "red")
    about = phrase(answer.backend or "backend unknown", count(len(answer.routes), "route"))
    out: list[str | Text] = [Text.assemble("cloud: ", state, f" ({about})")]
    out += [fold(f"  {reason}", width, 2) for reason in answer.reasons]
    if answer.routes:
        rows = [
            [(r.destination,), (r.node,), (r.table,), (r.target,), (r.state,), (r.problem,)] for r in answer.routes
        ]
        out.append(table(_TITLES, rows, width))
    for finding in conditions_from(answer.conditions, answer.findings):
        if finding.check != "cloud-route" and not is_unready(finding.code):  # the table has them
            out.append(fold(Text(finding.problem, style="yellow"), width, 2))
            out += [fold(f"  {text}", width, 2) for text in (finding.cause, finding.cure) if text]
    return lines(out)
