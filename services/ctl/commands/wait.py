"""`flannelette wait`: until the services of this node are ready, until every node has a change."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from google.protobuf.duration_pb2 import Duration

from flannelette.lease.v1 import lease_pb2 as pb
from flannelette.lease.v1.lease_pb2_grpc import LeaseServiceStub
from flannelette.services.ctl.answers import answers_of
from flannelette.services.ctl.connect.call import SHORT_SECONDS, CallFailed, ask, ask_lease_service, with_hint
from flannelette.services.ctl.connect.targets import Target, Targets
from flannelette.services.ctl.node_health import assess, words_of
from flannelette.services.ctl.render.nodes import converged_text, pending_text
from flannelette.services.ctl.render.screen import Screen, to_json
from flannelette.services.runtime.backoff import Backoff

_LONGEST_CALL: Final = 30.0
"""The lease service answers as soon as there is something to say, so the calls may be few."""
_READY_PAUSE: Final = 0.25


async def wait(targets: Targets, screen: Screen, *, ready: bool, converged: bool, cursor: str, seconds: float) -> int:
    """Waits for all that is asked for, one after the other in the same time; the first that does not come in time
    ends it.
    """
    deadline = asyncio.get_running_loop().time() + seconds
    steps: list[Callable[[], Coroutine[Any, Any, int]]] = []
    if ready:
        steps.append(lambda: until_ready(targets, screen, deadline))
    if converged:
        steps.append(lambda: until_converged(targets["lease"], screen, cursor, deadline))
    for step in steps:
        if code := await step():
            return code
    return 0


async def until_ready(targets: Targets, screen: Screen, deadline: float) -> int:
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


async def until_converged(target: Target, screen: Screen, cursor: str, deadline: float) -> int:
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
    request = pb.GetConvergenceRequest(cursor=cursor, wait=Duration(nanos=0))
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
