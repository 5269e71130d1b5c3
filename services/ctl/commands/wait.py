"""`flannelette wait`: until the services of this node are ready, until every node has a change."""

import asyncio
import math
from collections.abc import Sequence
from typing import Final

import click
from google.protobuf.duration_pb2 import Duration as Delay
from rich.text import Text

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.core.formats.text import count
from flannelette.services.ctl.answers import answers_of
from flannelette.services.ctl.command import command
from flannelette.services.ctl.commands.nodes import nodes_text
from flannelette.services.ctl.connect.call import SHORT_SECONDS, CallFailed, ask, ask_lease_service, with_hint
from flannelette.services.ctl.connect.contexts import Nodes, one_of
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.node_health import assess, words_of
from flannelette.services.ctl.options import Duration
from flannelette.services.ctl.screen import Screen, Width, fold, lines, phrase, short_time, to_json
from flannelette.services.runtime.backoff import Backoff

_LONGEST_CALL: Final = 30.0
"""The lease service answers as soon as there is something to say, so the calls may be few."""
_READY_PAUSE: Final = 0.25


@command(scope="every", examples=("flannelette wait --ready --timeout 2m", "flannelette wait --converged"))
@click.option("--converged", is_flag=True, help="Wait until every connected node has programmed every change.")
@click.option("--cursor", default="", help="With --converged: the last change to wait for.  [default: the newest]")
@click.option("--ready", is_flag=True, help="Wait until the services of this node are ready.")
@click.option(
    "--timeout",
    type=Duration(plain=1, most=math.inf),
    default=60,
    metavar="DURATION",
    help="Longest time to wait: 2s, 2m; a number is of seconds.  [default: 60s]",
)
async def wait(nodes: Nodes, screen: Screen, converged: bool, cursor: str, ready: bool, timeout: float) -> int:
    """Wait for a condition, and exit with 0 once it holds.

    Exits with 1 after --timeout, and names the pending nodes; exits with 2 if no
    service answers.
    """
    if not (converged or ready):
        raise click.UsageError("say what to wait for: --converged, --ready, or both")
    if cursor and not converged:
        raise click.UsageError("--cursor goes with --converged")
    targets = one_of(nodes, any_will_do=not ready)
    deadline = asyncio.get_running_loop().time() + timeout
    if ready and (code := await _until_ready(targets, screen, deadline)):
        return code
    return await _until_converged(targets["lease"], screen, cursor, deadline) if converged else 0


async def _until_ready(targets: Targets, screen: Screen, deadline: float) -> int:
    """Waits until `flannelette status` finds nothing; says what is missing when the time is over."""
    while True:
        node = assess(await answers_of(targets), targets)
        if node.healthy:
            return 0
        if _left(deadline) <= 0:
            for service, health in node.services.items():
                remarks = [words_of(each) for each in health.remarks] or [health.state.value]
                for remark in () if health.well else remarks:
                    screen.warn(f"{service}: {remark}")
            return node.exit_code
        await asyncio.sleep(min(_READY_PAUSE, max(_left(deadline), 0)))


async def _until_converged(target: Target, screen: Screen, cursor: str, deadline: float) -> int:
    """Waits until every connected node has the change (empty: the newest one of now). Returns 1 if that takes too
    long.

    Survives restarts of the lease service: the table of the new one has every change of the old one, so without a
    cursor of the user's the newest of then is as good.
    """
    wanted, pauses, trouble = cursor, Backoff(), ""
    while True:
        seconds = max(_left(deadline), 0)
        try:
            response = await _ask(target, wanted, min(seconds, _LONGEST_CALL))
        except CallFailed as failure:
            forgotten = failure.reached and wanted != cursor
            if not (failure.may_pass or forgotten) or seconds <= 0:
                raise with_hint(target, failure) from None
            if str(failure) != trouble and not forgotten:
                trouble = str(failure)
                screen.warn(f"{trouble}; waiting for it")
            wanted = cursor
            await asyncio.sleep(min(pauses.next(), seconds))
            continue
        wanted = response.cursor
        if response.converged or seconds <= 0:
            return await _tell(target, screen, response)


async def _ask(target: Target, cursor: str, seconds: float) -> pb.GetConvergenceResponse:
    request = pb.GetConvergenceRequest(cursor=cursor, wait=Delay(nanos=0))
    request.wait.FromMilliseconds(int(seconds * 1000))
    return await ask(target, lambda c: LeaseServiceStub(c).GetConvergence(request), seconds + SHORT_SECONDS)


async def _tell(target: Target, screen: Screen, response: pb.GetConvergenceResponse) -> int:
    if screen.json:
        screen.show_json(to_json(response))
    elif response.converged:
        screen.show(converged_text(response))
    else:
        known = await ask_lease_service(target, lambda c: LeaseServiceStub(c).ListNodes(pb.ListNodesRequest()))
        screen.show(pending_text(response, known.nodes, screen.width))
    return 0 if response.converged else 1


def _left(deadline: float) -> float:
    return deadline - asyncio.get_running_loop().time()


def converged_text(response: pb.GetConvergenceResponse) -> Text:
    """What a wait that was not in vain has to say."""
    nodes = len(response.nodes_done)
    time = f" after {short_time(response.elapsed)}" if response.HasField("elapsed") else ""
    return Text(f"converged: {count(nodes, 'node')} at {response.cursor}{time}")


def pending_text(response: pb.GetConvergenceResponse, nodes: Sequence[pb.Node], width: Width) -> Text:
    """Says which nodes have no change yet; `nodes` are all that are known."""
    missing = {*response.nodes_pending, *response.nodes_failed}
    if not missing:
        return Text("not converged: no dataplane is connected to this lease service")
    parts = phrase(
        f"{count(len(response.nodes_pending), 'node')} pending" if response.nodes_pending else "",
        f"{count(len(response.nodes_failed), 'node')} with failed leases" if response.nodes_failed else "",
        f"{count(len(response.nodes_done), 'node')} done",
    )
    shown = [node for node in nodes if node.name in missing]
    return lines([fold(f"not converged at {response.cursor}: {parts}", width), nodes_text(shown, width)])
