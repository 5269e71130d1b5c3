"""`flannelette cloud`: the routes in the cloud's tables, and what would change them."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import click
from rich.text import Text

from flannelette.cloud.v1 import cloud_pb2 as pb
from flannelette.cloud.v1.cloud_pb2_grpc import CloudServiceStub
from flannelette.services.core.conditions import found as condition
from flannelette.services.core.conditions import is_unready
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.command import carry_out, command
from flannelette.services.ctl.commands.kernel import plan_text
from flannelette.services.ctl.connect.call import LIST_SECONDS, LONG_SECONDS, CallFailed, ask
from flannelette.services.ctl.connect.targets import Target, Targets, cloud_beside
from flannelette.services.ctl.options import Address
from flannelette.services.ctl.problems import Problem, problem_of
from flannelette.services.ctl.screen import Screen, Width, fold, lines, phrase, table
from flannelette.services.runtime.conditions import conditions_from

_TITLES: Final = ("DESTINATION", "NODE", "TABLE", "TARGET", "STATE", "PROBLEM")


_address: Final[Callable[[Any], Any]] = click.option(
    "--address",
    type=Address(),
    envvar="FLANNELETTE_CLOUD",
    help="Address of flannelette-cloud.  [default: cloud.sock in --socket-dir]",
)


@click.group()
def cloud() -> None:
    """Show, write or remove routes in a cloud (aws-vpc, ...)."""


@command("status", group=cloud, scope="any")
@_address
async def _status(targets: Targets, screen: Screen, address: str | None) -> int:
    """Show each node's route in each table, and what is wrong with it."""
    response = await _get_status(_target(targets, address))
    screen.answer(response, lambda: _status_text(response, screen.width))
    return 0 if response.ready and not any(route.node and route.problem for route in response.routes) else 1


@command("diff", group=cloud, scope="any")
@_address
async def _diff(targets: Targets, screen: Screen, address: str | None) -> int:
    """Show how the cloud's tables differ from the leases.

    Prints the commands of the provider's own tool that would write the routes,
    and changes nothing. Exit codes are those of `flannelette diff`.
    """
    target = _target(targets, address)
    try:
        return await _write(target, screen, dry_run=True)
    except CallFailed as failure:
        screen.warn(str(failure))
        return 2


@command("sync", group=cloud, scope="any")
@_address
@click.option("--dry-run", is_flag=True, help="Change nothing, print the commands; exit with 1 if there are any.")
async def _sync(targets: Targets, screen: Screen, address: str | None, dry_run: bool) -> int:
    """Write the routes of all nodes now, and end a pause."""
    return await _write(_target(targets, address), screen, dry_run=dry_run)


@command("teardown", group=cloud, scope="any")
@_address
@click.option("--dry-run", is_flag=True, help="Remove nothing, print the commands.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def _teardown(targets: Targets, screen: Screen, address: str | None, dry_run: bool, yes: bool) -> int:
    """Remove our routes from the cloud's tables, and no others.

    Pods of different nodes then reach each other no more. The service keeps
    running, paused until `flannelette cloud sync` or a restart.
    """
    target = _target(targets, address)

    def remove(dry_run: bool) -> int:
        request = pb.TeardownRoutesRequest(dry_run=dry_run)
        done = asyncio.run(ask(target, lambda c: CloudServiceStub(c).TeardownRoutes(request), LONG_SECONDS))
        screen.answer(done, lambda: plan_text("cloud", done, dry_run=dry_run))
        return 0

    question = "Remove all of this? Pods lose those of other nodes."
    return carry_out(remove, screen, question, "be removed", dry_run=dry_run, yes=yes)


async def _write(target: Target, screen: Screen, *, dry_run: bool) -> int:
    """Writes the routes now. 1 if a dry run finds something to do."""
    request = pb.SyncRoutesRequest(dry_run=dry_run)
    done = await ask(target, lambda c: CloudServiceStub(c).SyncRoutes(request), LONG_SECONDS)
    screen.answer(done, lambda: plan_text("cloud", done, dry_run=dry_run))
    return int(dry_run and bool(done.commands))


async def _get_status(target: Target) -> pb.GetStatusResponse:
    return await ask(target, lambda c: CloudServiceStub(c).GetStatus(pb.GetStatusRequest()), LIST_SECONDS)


def _target(targets: Targets, address: str | None) -> Target:
    """The process at this address, else beside the sockets of the other services. Raises CallFailed."""
    if address:
        return replace(targets["lease"], service="cloud", address=address, named=True, dialer=None)
    if beside := cloud_beside(targets):
        return beside
    raise CallFailed("the services of this context have no socket here: give --address of flannelette-cloud")


async def cloud_problems(target: Target) -> list[Problem]:
    """What the service finds, and why it is not ready."""
    try:
        answer = await _get_status(target)
    except CallFailed as failure:
        return [problem_of("cloud", condition("ctl.away", failure=failure))]
    told = conditions_from(answer.conditions, answer.findings)
    reasons = [each.problem for each in told if is_unready(each.code)] or answer.reasons
    found = [each for each in told if not is_unready(each.code)]
    # A route that cannot be written, or a refusal of the provider, is the reason too.
    away = () if found else (condition("ctl.cloud", reason=each) for each in reasons)
    return [problem_of("cloud", each) for each in (*found, *away)]


def _status_text(answer: pb.GetStatusResponse, width: Width) -> Text:
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
